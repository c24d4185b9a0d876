// One worker in JavaScript whose steps do nothing: node worker.mjs SERVER SLOTS CLIENT

const [server, slots, client] = process.argv.slice(2);
const { Worker } = await import(client);

const NEXT = { one: 'a', two: 'b', three: 'c', four: 'd' };
const worker = new Worker({ server, slots: Number(slots) });
worker.step('nothing', (ctx) => {
  if (NEXT[ctx.step] !== undefined) ctx.emit(NEXT[ctx.step], {});
});

console.log('ready');
await worker.run();
process.exit();
