import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";

const ROOT = join(import.meta.dirname, "..");

function sources(folder: string): [string, string][] {
  return readdirSync(join(ROOT, folder), { recursive: true, encoding: "utf8" })
    .filter((name) => /\.(tsx?|css|html)$/.test(name))
    .map((name) => [join(folder, name), readFileSync(join(ROOT, folder, name), "utf8")]);
}

test("a text cannot become code: nothing in the source sets HTML or runs a text", () => {
  const ways = /dangerouslySetInnerHTML|\binnerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function\(|srcdoc|setAttribute\("style"/;
  const found = sources("src").filter(([, text]) => ways.test(text)).map(([name]) => name);
  expect(found).toEqual([]);
  expect(sources("src").length).toBeGreaterThan(40);
});

test("nothing is loaded from elsewhere, and no style or script is inline", () => {
  const page = readFileSync(join(ROOT, "index.html"), "utf8");
  expect(page).not.toMatch(/https?:|<style|style=|\son\w+=|<script(?![^>]*src=)/);
  for (const [name, text] of sources("src")) {
    expect(text.match(/\bstyle="/g), name).toBeNull();
    if (name.endsWith(".css")) expect(text.match(/url\(|@import/g), name).toBeNull();
  }
});

test("no file is more than one thing", () => {
  const long = sources("src").filter(([, text]) => text.split("\n").length > 800).map(([name]) => name);
  expect(long).toEqual([]);
});
