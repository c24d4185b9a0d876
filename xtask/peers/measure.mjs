// Drives a peer through the scenarios of `flowgate bench`, and prints one JSON object a setting.
//
// A peer has a name and one or more settings. A setting opens to {chain, single, close}: `chain` runs
// five steps that do nothing, one after the other, `single` runs one, and both resolve once the last
// of them has been settled. It says whether the documents of the peer recommend it (`recommended`).
//
// The machine is another one from moment to moment, so the peer and flowgate take turns: after each
// measurement of a chain it prints {setting, turn} with the steps per second, and waits for a line.

import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';

/** Steps of a chain. */
export const STEPS = 5;

/** Chains that are under way at a time. */
export const IN_FLIGHT = 200;

/** Rounds of turns over all settings. */
const ROUNDS = 5;

const FULL = { chains: 2000, singles: 4000, idle: 100 };
const QUICK = { chains: 600, singles: 1000, idle: 30 };

/** The URL of a server that was started for this, and may be filled. */
export function serverUrl(variable) {
  const url = process.env[variable];
  if (!url) throw new Error(`${variable} must hold the URL of a private server`);
  return url;
}

export async function measure({ name, module, settings }) {
  const { values } = parseArgs({ options: { quick: { type: 'boolean', default: false } } });
  const scale = values.quick ? QUICK : FULL;
  const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  const rates = new Map(settings.map((setting) => [setting, []]));
  for (let round = 0; round < ROUNDS; round += 1) {
    for (const setting of settings) {
      const peer = await setting.open();
      const rate = (await chains(peer, scale.chains)).perSecond * STEPS;
      await peer.close();
      rates.get(setting).push(rate);
      print({ setting: setting.name, turn: rate });
      await answers.next();
    }
  }
  for (const setting of settings) {
    const figures = await measureSetting(setting, scale);
    figures.chain_steps_per_s = percentile(rates.get(setting), 0.5);
    const peer = { peer: name, version: version(module), setting: setting.name };
    print({ ...peer, recommended: setting.recommended ?? false, ...figures });
  }
  process.stdin.destroy();
}

function print(object) {
  process.stdout.write(`${JSON.stringify(object)}\n`);
}

async function measureSetting(setting, scale) {
  const peer = await setting.open();
  const chain = await chains(peer, scale.chains);
  const single = await drive(peer.single, scale.singles, IN_FLIGHT);
  await drive(peer.chain, 5, 1);
  const idle = await drive(peer.chain, scale.idle, 1);
  await peer.close();
  return {
    single_jobs_per_s: single.perSecond,
    idle_chain_p50_ms: percentile(idle.latencies, 0.5),
    idle_chain_p99_ms: percentile(idle.latencies, 0.99),
    cpu_us_per_step: chain.cpuMicroseconds / (scale.chains * STEPS),
  };
}

async function chains(peer, times) {
  await drive(peer.chain, times / 10, IN_FLIGHT);
  return drive(peer.chain, times, IN_FLIGHT);
}

/** Calls `work` so many times, `inFlight` at a time. */
async function drive(work, times, inFlight) {
  const latencies = [];
  let left = times;
  const oneByOne = async () => {
    while (left > 0) {
      left -= 1;
      const start = performance.now();
      await work();
      latencies.push(performance.now() - start);
    }
  };
  const cpu = process.cpuUsage();
  const start = performance.now();
  await Promise.all(Array.from({ length: inFlight }, oneByOne));
  const seconds = (performance.now() - start) / 1000;
  const { user, system } = process.cpuUsage(cpu);
  return { perSecond: times / seconds, latencies, cpuMicroseconds: user + system };
}

function percentile(values, share) {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.min(Math.floor(sorted.length * share), sorted.length - 1)];
}

/** The manifest names exact versions. */
function version(module) {
  const manifest = readFileSync(new URL('package.json', import.meta.url), 'utf8');
  return JSON.parse(manifest).dependencies[module];
}

/** Callers that wait until their last job has been settled. */
export class Waiting {
  #callers = new Map();
  #last = 0;

  /** Hands `start` a new id, and resolves when `settled` is called with it. */
  async for(start) {
    this.#last += 1;
    const id = this.#last;
    const settled = new Promise((resolve) => this.#callers.set(id, resolve));
    await start(id);
    await settled;
  }

  settled(id) {
    this.#callers.get(id)?.();
    this.#callers.delete(id);
  }
}
