/** The worker in TypeScript of the polyglot flow: node build/worker.js URL */

import { setTimeout as sleep } from "node:timers/promises";

import { Worker } from "flowgate";

const servers = process.argv.slice(2);
// A short lease, so that the step of a killed worker is soon executed by another.
const worker = new Worker({ server: servers.length > 0 ? servers : "http://127.0.0.1:7420", leaseMs: 3000 });

interface Input {
  "order.received": { orderId: number; workMs?: number };
}

worker.step("price", async (ctx, input: Input) => {
  const { orderId, workMs = 0 } = input["order.received"];
  // The work takes so long, unless the attempt must stop.
  await sleep(workMs, undefined, { signal: ctx.signal });
  const cents = orderId * 100;
  ctx.log("info", `order ${orderId} costs ${cents} cents, key ${ctx.key}`);
  ctx.emit("order.priced", { cents });
  return { cents };
});

await worker.run();
process.exit();
