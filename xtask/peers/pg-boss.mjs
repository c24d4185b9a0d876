// pg-boss on PostgreSQL: who completes a batch of jobs inserts the next ones of their chains.

import { setTimeout as sleep } from 'node:timers/promises';
import { PgBoss } from 'pg-boss';
import { STEPS, Waiting, measure, serverUrl } from './measure.mjs';

const QUEUE = 'chain';
const url = serverUrl('FLOWGATE_TEST_POSTGRES');

/** `serve` gets {boss, steps, settled}, starts to work, and returns how to end that. */
async function open({ notify }, serve) {
  const boss = new PgBoss({ connectionString: url, useListenNotify: notify, max: 20 });
  boss.on('error', (error) => process.stderr.write(`pg-boss: ${error.message}\n`));
  await boss.start();
  if (await boss.getQueue(QUEUE)) await boss.deleteQueue(QUEUE);
  await boss.createQueue(QUEUE, { notify });
  const waiting = new Waiting();
  const steps = async (jobs, options) => {
    const unfinished = jobs.filter(({ data }) => data.left > 0);
    const next = unfinished.map(({ data: { run, left } }) => ({ data: { run, left: left - 1 } }));
    if (next.length > 0) await boss.insert(QUEUE, next, options);
  };
  const settled = (jobs) => {
    for (const { data } of jobs) if (data.left === 0) waiting.settled(data.run);
  };
  const end = await serve({ boss, steps, settled });
  return {
    chain: () => waiting.for((run) => boss.send(QUEUE, { run, left: STEPS - 1 })),
    single: () => waiting.for((run) => boss.send(QUEUE, { run, left: 0 })),
    close: async () => {
      await end();
      await boss.stop({ graceful: false });
    },
  };
}

/** The workers of pg-boss, at the shortest interval that it takes. */
async function byWork({ boss, steps, settled }) {
  const options = {
    batchSize: 50,
    localConcurrency: 2,
    pollingIntervalSeconds: 0.5,
    notifyPollingIntervalSeconds: 0.5,
    burstWhenBatchFull: true,
  };
  await boss.work(QUEUE, options, async (jobs) => {
    await steps(jobs);
    // A little early: pg-boss completes the batch when this returns, and tells nobody.
    settled(jobs);
  });
  return () => boss.offWork(QUEUE);
}

/** Workers whose steps, and the insertion of the next ones, are one transaction with their end. */
const inTransactions = (options) => async ({ boss, steps, settled }) => {
  const shared = {
    transactional: true,
    pollingIntervalSeconds: 0.5,
    notifyPollingIntervalSeconds: 0.5,
    burstWhenBatchFull: true,
  };
  await boss.work(QUEUE, { ...shared, ...options }, async (jobs, db) => {
    await steps(jobs, { db });
    settled(jobs);
  });
  return () => boss.offWork(QUEUE);
};

/** A loop of our own around fetch and complete, which waits less than a worker may. */
async function byFetch({ boss, steps, settled }) {
  let ended = false;
  const loop = async () => {
    while (!ended) {
      const jobs = await boss.fetch(QUEUE, { batchSize: 100 });
      await steps(jobs);
      if (jobs.length === 0) await sleep(5);
      else await boss.complete(QUEUE, jobs.map(({ id }) => id));
      settled(jobs);
    }
  };
  const loops = [loop(), loop()];
  return () => {
    ended = true;
    return Promise.all(loops);
  };
}

await measure({
  name: 'pg-boss',
  module: 'pg-boss',
  settings: [
    { name: 'work() with notify', recommended: true, open: () => open({ notify: true }, byWork) },
    { name: 'work() in bursts', recommended: true, open: () => open({ notify: false }, byWork) },
    { name: 'a loop around fetch()', open: () => open({ notify: false }, byFetch) },
    {
      name: 'work() in transactions, a job each',
      recommended: true,
      open: () => open({ notify: true }, inTransactions({ batchSize: 1, localConcurrency: 16 })),
    },
    {
      name: 'work() in transactions, 50 jobs each',
      recommended: true,
      open: () => open({ notify: true }, inTransactions({ batchSize: 50, localConcurrency: 2 })),
    },
  ],
});
