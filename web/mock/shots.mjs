// Pictures of every page with made-up data, light and dark, wide and narrow, into web/shots:
// node mock/shots.mjs [PART OF A NAME]

import { mkdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { hacked, launch, open, overflow } from "../e2e/browser.mjs";
import { start } from "./server.mjs";

const folder = fileURLToPath(new URL("../dist", import.meta.url));
const shots = fileURLToPath(new URL("../shots", import.meta.url));
mkdirSync(shots, { recursive: true });
const { server, world, context } = await start(0, folder);
const base = `http://127.0.0.1:${server.address().port}`;
const byCause = (cause) => world.runs.find((run) => world.why.get(run.run_id)?.(run)[0].cause === cause).run_id;

const deployment = (phase, flow) => {
  const found = context.deployments.find((each) => each.item.phase === phase && (!flow || each.item.flow === flow));
  return `/deployments/${found.item.flow}/${found.item.deployment_id}`;
};

const pages = {
  overview: "/",
  runs: "/runs",
  "runs-filtered": "/runs?status=failed&flow=order&tag=tenant%3Dacme",
  "run-failed": `/runs/${world.failed}?step=charge`,
  "run-waiting": `/runs/${byCause("signal")}`,
  "run-retrying": `/runs/${byCause("retrying")}`,
  "run-no-worker": `/runs/${byCause("no_worker")}`,
  "run-big": `/runs/${world.big}`,
  "run-logs": `/runs/${world.failed}?tab=logs`,
  "run-data": `/runs/${world.failed}?tab=data`,
  "run-evil": `/runs/${world.evil}?tab=data`,
  flows: "/flows",
  flow: "/flows/import.customers",
  "flow-revisions": "/flows/order?tab=revisions&step=charge",
  "flow-start": "/flows/order?start=1",
  schedules: "/schedules",
  schedule: "/schedules/nightly-report%2Fnightly",
  hold: "/hold",
  "run-held": `/runs/${byCause("held")}`,
  queues: "/queues",
  dead: "/dead",
  "dead-list": "/dead?view=list",
  subscribers: "/subscribers?subscriber=billing",
  instances: "/instances",
  deployments: "/deployments",
  "deployment-open": deployment("resume"),
  "deployment-drain": deployment("drain"),
  "deployment-good": deployment("completed"),
  "deployment-back": deployment("rolled_back"),
  "deployment-loss": deployment("completed", "heartbeat"),
  "deployment-evil": deployment("rolled_back", "x.script-img"),
  "deployment-new": "/deployments?flow=order&new=1",
  missing: "/runs/doesnotexist",
};

const wanted = process.argv[2] ?? "";
const browser = await launch();
let problems = 0;
for (const theme of ["light", "dark"]) {
  for (const width of [1280, 400]) {
    const { page, wrong, close } = await open(browser, base, { theme, width });
    for (const [name, path] of Object.entries(pages)) {
      if (!name.includes(wanted)) continue;
      await page.goto(base + path, { waitUntil: "load" });
      await page.waitForTimeout(450);
      const over = await overflow(page);
      if (over > 0) wrong.push(`${name} is ${over} px wider than ${width}`);
      if (await hacked(page)) wrong.push(`${name}: a text became code`);
      await page.screenshot({ path: `${shots}/${name}-${theme}-${width}.png`, fullPage: true });
      for (const line of wrong.splice(0)) {
        if (name === "missing" && line.includes("404")) continue;
        problems += 1;
        console.log(`${name} ${theme} ${width}: ${line}`);
      }
    }
    await close();
  }
}
await browser.close();
server.closeAllConnections();
server.close();
console.log(problems === 0 ? "nothing is wrong" : `${problems} problems`);
