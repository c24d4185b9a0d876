// DBOS on PostgreSQL: a workflow of five steps.

import { DBOS } from '@dbos-inc/dbos-sdk';
import { STEPS, measure, serverUrl } from './measure.mjs';

const MODULE = '@dbos-inc/dbos-sdk';

function workflow(steps) {
  const body = async () => {
    for (let step = 0; step < steps; step += 1) {
      await DBOS.runStep(async () => {}, { name: `step ${step}` });
    }
  };
  return DBOS.registerWorkflow(body, { name: `workflow of ${steps}` });
}

const chain = workflow(STEPS);
const single = workflow(1);

async function open(systemDatabasePoolSize) {
  // A database of its own, which it makes by itself.
  const systemDatabaseUrl = new URL(serverUrl('FLOWGATE_TEST_POSTGRES'));
  systemDatabaseUrl.pathname = '/dbos';
  DBOS.setConfig({
    name: 'bench',
    systemDatabaseUrl: systemDatabaseUrl.href,
    systemDatabasePoolSize,
    logLevel: 'error',
  });
  await DBOS.launch();
  return { chain, single, close: () => DBOS.shutdown() };
}

await measure({
  name: 'dbos',
  module: MODULE,
  settings: [
    { name: 'a pool of 20', recommended: true, open: () => open(20) },
    { name: 'a pool of 50', recommended: true, open: () => open(50) },
  ],
});
