// Prints how large the built dashboard is, and fails if it is too large: node size.mjs FOLDER

import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

const GZIP_MAX = 90_000;

const folder = process.argv[2] ?? "dist";
let [bytes, zipped] = [0, 0];
for (const name of readdirSync(folder).sort()) {
  const text = readFileSync(join(folder, name));
  const small = gzipSync(text, { level: 9 }).length;
  console.log(`${name.padEnd(12)} ${String(text.length).padStart(8)} bytes, ${String(small).padStart(7)} with gzip`);
  bytes += text.length;
  zipped += small;
}
console.log(`${"in all".padEnd(12)} ${String(bytes).padStart(8)} bytes, ${String(zipped).padStart(7)} with gzip, of at most ${GZIP_MAX}`);
if (zipped > GZIP_MAX) {
  console.error(`the dashboard is too large: ${zipped} bytes with gzip, at most ${GZIP_MAX} are allowed`);
  process.exitCode = 1;
}
