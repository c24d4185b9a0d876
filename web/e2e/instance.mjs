// A real flowgate process on a store and a folder of its own, and calls of its API.

import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const READY_MS = 20_000;
const POLL_MS = 20;

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Waits until `look` gives something, and fails with `what` if it does not in time. */
export async function until(what, look, ms = 30_000) {
  const end = performance.now() + ms;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (performance.now() > end) throw new Error(`after ${ms} ms still not: ${what}`);
    await pause(POLL_MS);
  }
}

function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.on("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

export class Instance {
  constructor(binary, folder, port) {
    this.binary = binary;
    this.folder = folder;
    this.port = port;
    this.base = `http://127.0.0.1:${port}`;
    this.said = "";
  }

  /** Starts one with these flow files, by name; `settings` is its flowgate.toml. */
  static async start(flows, settings = "") {
    const binary = process.env.FLOWGATE;
    if (!binary) throw new Error("FLOWGATE must be the path of the binary: use `cargo xtask browser`");
    const folder = mkdtempSync(join(tmpdir(), "flowgate-browser-"));
    mkdirSync(join(folder, "flows"));
    for (const [name, text] of Object.entries(flows)) writeFileSync(join(folder, "flows", name), text);
    writeFileSync(join(folder, "flowgate.toml"), settings);
    const instance = new Instance(binary, folder, await freePort());
    instance.spawn();
    await instance.ready();
    return instance;
  }

  /** Starts the process on the store that it has, or had before it was killed. */
  spawn() {
    const args = ["dev", "flows", "--store", "sqlite:flowgate.db", "--listen", `127.0.0.1:${this.port}`];
    this.startedAt = performance.now();
    this.child = spawn(this.binary, args, { cwd: this.folder, stdio: ["ignore", "pipe", "pipe"] });
    const keep = (chunk) => (this.said = (this.said + chunk).slice(-8_000));
    this.child.stderr.on("data", keep);
    this.child.stdout.on("data", keep);
  }

  /** Ends the process as a power cut would. */
  async kill() {
    const ended = new Promise((resolve) => this.child.once("exit", resolve));
    this.child.kill("SIGKILL");
    await ended;
  }

  async ready() {
    await until("the instance is ready", async () => {
      if (this.child.exitCode !== null) throw new Error(`the instance ended: ${this.said}`);
      return fetch(this.base + "/readyz").then((answer) => answer.ok, () => false);
    }, READY_MS);
  }

  async call(method, path, body) {
    const answer = await fetch(this.base + "/api/v1" + path, {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
    return text === "" ? null : JSON.parse(text);
  }

  get(path) {
    return this.call("GET", path);
  }

  /** Starts a run and gives its id. */
  async run(flow, body = {}) {
    return (await this.call("POST", "/runs", { flow, ...body })).run_id;
  }

  /** Waits until the run has one of these statuses. */
  settled(run, ...statuses) {
    return until(`run ${run} is ${statuses.join(" or ")}`, async () => {
      const found = await this.get(`/runs/${run}`);
      return statuses.includes(found.status) ? found : null;
    }, 60_000);
  }

  async stop() {
    if (this.child.exitCode === null) {
      const ended = new Promise((resolve) => this.child.once("exit", resolve));
      this.child.kill("SIGTERM");
      const timer = setTimeout(() => this.child.kill("SIGKILL"), 5_000);
      await ended;
      clearTimeout(timer);
    }
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** `flowgate demo`, until it is stopped. */
export class Demo extends Instance {
  static async start() {
    const folder = mkdtempSync(join(tmpdir(), "flowgate-browser-"));
    const demo = new Demo(process.env.FLOWGATE, folder, await freePort());
    demo.spawn();
    await demo.ready();
    return demo;
  }

  spawn() {
    const args = ["demo", "--json", "--listen", `127.0.0.1:${this.port}`, "--for", "3m"];
    this.child = spawn(this.binary, args, { cwd: this.folder, stdio: ["ignore", "ignore", "ignore"] });
  }
}
