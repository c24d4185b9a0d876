// BullMQ on Redis: each job adds the next one of its chain.

import { Queue, Worker } from 'bullmq';
import { Redis } from 'ioredis';
import { IN_FLIGHT, STEPS, Waiting, measure, serverUrl } from './measure.mjs';

const QUEUE = 'chain';
const url = serverUrl('FLOWGATE_TEST_REDIS');
// BullMQ asks for this of the connections of its workers.
const connect = () => new Redis(url, { maxRetriesPerRequest: null });

// What its guide calls good practice; `removeOnComplete: true` is the leanest that it knows.
const KEEP = { removeOnComplete: { count: 1000 }, removeOnFail: { count: 5000 } };
const KEEP_NONE = { removeOnComplete: true };

async function open(workersCount, kept) {
  const connections = [];
  const connection = () => connections[connections.push(connect()) - 1];
  const waiting = new Waiting();
  const queue = new Queue(QUEUE, { connection: connection() });
  const add = (run, left) => queue.add('step', { run, left }, kept);
  const step = async ({ data: { run, left } }) => {
    if (left > 0) await add(run, left - 1);
  };
  const workers = Array.from({ length: workersCount }, () => {
    const concurrency = IN_FLIGHT / workersCount;
    const worker = new Worker(QUEUE, step, { connection: connection(), concurrency });
    // It comes after the job has been settled, and in this process, so nothing has to be asked.
    worker.on('completed', ({ data: { run, left } }) => {
      if (left === 0) waiting.settled(run);
    });
    return worker;
  });
  await Promise.all(workers.map((worker) => worker.waitUntilReady()));
  return {
    chain: () => waiting.for((run) => add(run, STEPS - 1)),
    single: () => waiting.for((run) => add(run, 0)),
    close: async () => {
      await Promise.all(workers.map((worker) => worker.close()));
      await queue.close();
      for (const open of connections) open.disconnect();
    },
  };
}

await measure({
  name: 'bullmq',
  module: 'bullmq',
  settings: [
    ...settings(KEEP, '', true),
    ...settings(KEEP_NONE, ', none kept', false),
  ],
});

function settings(kept, named, recommended) {
  const all = `a worker, concurrency ${IN_FLIGHT}${named}`;
  const half = `two workers, concurrency ${IN_FLIGHT / 2} each${named}`;
  return [
    { name: all, recommended, open: () => open(1, kept) },
    { name: half, recommended, open: () => open(2, kept) },
  ];
}
