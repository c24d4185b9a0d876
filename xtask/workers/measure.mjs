// Measures how many steps one remote worker executes in a second, and prints one JSON object.
//
// All runs are started first, so that only the server and the worker work while it is measured.

import { spawn } from 'node:child_process';
import { copyFileSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';

const STEPS = 5;
const STARTS_AT_ONCE = 20;
/** Clock ticks in a second, as /proc counts them. */
const TICKS = 100;
const PATIENCE_MS = 300_000;

const { values } = parseArgs({
  options: {
    binary: { type: 'string' },
    clients: { type: 'string' },
    language: { type: 'string' },
    runs: { type: 'string' },
    slots: { type: 'string' },
  },
});
const here = dirname(fileURLToPath(import.meta.url));
const client = pathToFileURL(join(values.clients, 'typescript/dist/index.js')).href;
const { Client } = await import(client);
const folder = mkdtempSync(join(tmpdir(), 'flowgate-workers-'));
const children = [];
try {
  await measure(Number(values.runs), Number(values.slots));
} finally {
  for (const child of children) child.kill('SIGKILL');
  rmSync(folder, { recursive: true, force: true });
}

async function measure(runs, slots) {
  copyFileSync(join(here, 'flow.yaml'), join(folder, 'flow.yaml'));
  const address = `127.0.0.1:${await freePort()}`;
  const server = start(values.binary, ['worker', 'start', '.', '--listen', address], 'ignore');
  const url = `http://${address}`;
  await until(async () => (await fetch(`${url}/readyz`).catch(() => null))?.ok, 100);
  await startRuns(new Client({ server: url }), runs);

  const worker = startWorker(url, slots);
  await new Promise((resolve) => worker.stdout.once('data', resolve));
  const before = [cpuOf(worker.pid), cpuOf(server.pid)];
  const began = performance.now();
  await until(async () => (await openRuns(url)) === 0, 50);
  const seconds = (performance.now() - began) / 1000;
  const steps = runs * STEPS;
  const used = (after, at) => Math.round(((after - before[at]) / steps) * 1e6);
  const figures = {
    language: values.language,
    slots,
    runs,
    steps_per_s: Math.round(steps / seconds),
    worker_cpu_us_per_step: used(cpuOf(worker.pid), 0),
    server_cpu_us_per_step: used(cpuOf(server.pid), 1),
  };
  process.stdout.write(`${JSON.stringify(figures)}\n`);
}

async function startRuns(api, runs) {
  let left = runs;
  const one = async () => {
    while (left > 0) {
      left -= 1;
      await api.startRun('chain');
    }
  };
  await Promise.all(Array.from({ length: STARTS_AT_ONCE }, one));
}

/** Runs that have not ended. */
async function openRuns(url) {
  const answer = await fetch(`${url}/api/v1/runs?flow=chain&status=running,waiting&limit=1`);
  const { total } = await answer.json();
  if (!answer.ok || typeof total !== 'number') throw new Error(`GET /runs: ${answer.status}`);
  return total;
}

function startWorker(url, slots) {
  if (values.language === 'python') {
    const source = join(values.clients, 'python/src');
    const env = { ...process.env, PYTHONPATH: source, PYTHONDONTWRITEBYTECODE: '1' };
    return start('python3', [join(here, 'worker.py'), url, String(slots)], 'pipe', env);
  }
  return start(process.execPath, [join(here, 'worker.mjs'), url, String(slots), client], 'pipe');
}

function start(program, args, stdout, env = process.env) {
  const child = spawn(program, args, { cwd: folder, env, stdio: ['ignore', stdout, 'inherit'] });
  child.once('error', (error) => {
    throw error;
  });
  children.push(child);
  return child;
}

async function until(fact, pauseMs) {
  const ends = performance.now() + PATIENCE_MS;
  while (!(await fact())) {
    if (performance.now() > ends) throw new Error('it takes too long');
    await sleep(pauseMs);
  }
}

/** Seconds of processor time of a process. */
function cpuOf(pid) {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return (Number(fields[11]) + Number(fields[12])) / TICKS;
}

function freePort() {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once('error', reject);
    probe.listen(0, '127.0.0.1', () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}
