// The dashboard in a real browser against a real instance.

import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { hacked, launch, open, overflow } from "./browser.mjs";
import { XSS, files } from "./flows.mjs";
import { Demo, Instance, until } from "./instance.mjs";

const RUNS = 5_000;
const FIRST_RUN_MS_MAX = 5_000;
const OPEN_MS_MAX = 1_000;
const SHOTS = process.env.FLOWGATE_SHOTS ?? fileURLToPath(new URL("../shots", import.meta.url));

/** A binary that is not built for release is not judged by the clock; its times are printed. */
const TIMED = process.env.FLOWGATE_UNTIMED !== "1";

let browser;
let instance;
/** What went wrong in any page of any test. */
const wrong = [];

before(async () => {
  mkdirSync(SHOTS, { recursive: true });
  browser = await launch();
});

after(async () => {
  await browser?.close();
  await instance?.stop();
});

/** Opens a page, does something in it, and keeps what went wrong. */
async function visit(path, act, { expected, ...options } = {}) {
  const view = await open(browser, instance.base, options);
  try {
    await view.page.goto(instance.base + path, { waitUntil: "load" });
    await act(view.page);
    assert.equal(await hacked(view.page), false, "a text became code");
  } finally {
    wrong.push(...view.wrong.filter((line) => !expected?.test(line)).map((line) => `${path}: ${line}`));
    await view.close();
  }
}

const status = (page) => page.locator("[data-status]").getAttribute("data-status");
const hasStatus = (page, wanted) => until(`the page says ${wanted}`, async () => (await status(page)) === wanted);
const node = (page, step) => page.locator(`[data-step="${step}"]`);

test("the first finished run is in the page within seconds of the start of the process", async () => {
  instance = await Instance.start(files);
  const flows = async () => (await instance.get("/flows")).items.map((flow) => `${flow.flow}.json`).sort();
  await until("the flow files are loaded", async () => (await flows()).length === Object.keys(files).length).catch(async () => {
    assert.deepEqual(await flows(), Object.keys(files).sort(), instance.said);
  });
  await visit("/runs", async (page) => {
    await instance.run("quick", { key: "the-first" });
    await page.locator("table.runs tr", { hasText: "completed" }).first().waitFor();
    const took = Math.round(performance.now() - instance.startedAt);
    console.log(`first finished run in the page: ${took} ms after the start of the process`);
    if (TIMED) assert.ok(took < FIRST_RUN_MS_MAX, `${took} ms`);
  });
});

test("a run that is started in the page moves in it without a reload", async () => {
  await visit("/flows/order", async (page) => {
    await page.getByRole("button", { name: "Start a run…" }).click();
    const input = page.getByLabel("Input");
    assert.deepEqual(JSON.parse(await input.inputValue()), { orderId: 1 });
    await input.fill('{"orderId": 0}');
    await page.getByText("input.orderId must be at least 1").waitFor();
    await page.getByRole("button", { name: "Start", exact: true }).click();
    await page.locator(".problem", { hasText: "input_invalid" }).waitFor();
    await input.fill('{"orderId": 7}');
    await page.evaluate(() => (window.sameDocument = true));
    await page.getByRole("button", { name: "Start", exact: true }).click();
    await page.waitForURL(/\/runs\/[0-9a-f-]{36}$/);
    const seen = new Set();
    await until("the run completes", async () => {
      for (const step of ["start", "charge", "reserve", "ship"]) {
        const state = await node(page, step).getAttribute("data-state").catch(() => null);
        if (state) seen.add(`${step} ${state}`);
      }
      return (await status(page).catch(() => null)) === "completed";
    }, 20_000);
    for (const wanted of ["charge pending", "charge running", "ship pending"]) assert.ok(seen.has(wanted), `${wanted} was not seen among ${[...seen].join(", ")}`);
    await until("every step succeeded", async () => (await page.locator('.node[data-state="succeeded"]').count()) === 4);
    assert.equal(await page.evaluate(() => window.sameDocument), true, "the page was loaded again");
    await page.locator(".event-type", { hasText: "run.completed" }).waitFor();
    await page.getByRole("tab", { name: "Logs" }).click();
    await page.locator(".log-text", { hasText: "charging" }).waitFor();
    await page.getByRole("tab", { name: "Data" }).click();
    await page.locator(".json", { hasText: "P-1001" }).first().waitFor();
    // The browser itself notes in its console that an input was refused.
  }, { expected: /status of 422/ });
});

test("a waiting step is approved in the page, and the run goes on", async () => {
  const run = await instance.run("approval");
  await instance.settled(run, "waiting");
  await visit(`/runs/${run}`, async (page) => {
    await page.locator('.why[data-cause="signal"]').waitFor();
    await page.locator(".why").getByRole("button", { name: "Approve…" }).click();
    const dialog = page.getByRole("dialog");
    assert.deepEqual(JSON.parse(await dialog.getByLabel("Data").inputValue()), { approved: true });
    await dialog.getByRole("button", { name: "Approve", exact: true }).click();
    await hasStatus(page, "completed");
  });
});

test("a run is cancelled after a confirmation, with its reason in the log", async () => {
  const run = await instance.run("timer");
  await instance.settled(run, "waiting");
  await visit(`/runs/${run}`, async (page) => {
    await page.getByRole("button", { name: "Cancel…" }).click();
    const dialog = page.getByRole("dialog");
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "detached" });
    assert.equal(await status(page), "waiting", "Esc must not cancel the run");
    await page.getByRole("button", { name: "Cancel…" }).click();
    await dialog.getByLabel("Reason").fill("not needed any more");
    await dialog.getByRole("button", { name: "Cancel the run" }).click();
    await hasStatus(page, "cancelled");
    await page.locator(".why", { hasText: "not needed any more" }).waitFor();
  });
});

test("a dialog has the keys from the click on, not only from the next frame", async () => {
  const run = await instance.run("timer");
  await instance.settled(run, "waiting");
  await visit(`/runs/${run}`, async (page) => {
    const button = page.getByRole("button", { name: "Cancel…" });
    await button.waitFor();
    const isOpen = await button.evaluate(async (element) => {
      element.click();
      for (let turn = 0; turn < 10; turn += 1) await Promise.resolve();
      return document.querySelector("dialog")?.matches(":modal") ?? false;
    });
    assert.ok(isOpen, "a key would still go to the page below");
  });
});

test("a failed run is retried from the failed step, and takes over what succeeded", async () => {
  const run = await instance.run("mending");
  await instance.settled(run, "failed");
  writeFileSync(join(instance.folder, "flows", "mended"), "");
  await visit(`/runs/${run}`, async (page) => {
    await page.locator('.why[data-cause="failed"]', { hasText: "the card was declined" }).waitFor();
    await node(page, "charge").click();
    await page.getByRole("button", { name: "Retry from here…" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Retry from this step" }).click();
    await page.waitForURL((url) => url.pathname.startsWith("/runs/") && !url.pathname.endsWith(run));
    await hasStatus(page, "completed");
    await page.getByText("retry of").waitFor();
    const again = page.url().split("/").at(-1);
    const events = await instance.get(`/runs/${again}/events?limit=1000`);
    const executed = events.items.filter((event) => event.type === "step.queued").map((event) => event.step);
    assert.deepEqual(executed, ["charge", "ship"], "only the failed step and what follows is executed");
  });
});

test("a failed run is retried on the revision that is mended", async () => {
  const text = (second) => JSON.stringify({ flow: "revised", steps: { first: {}, second: { subscribes: ["step:first"], ...second } } });
  await instance.call("POST", "/flows", { text: text({ wait: { signal: "never", timeout: "1ms" } }) });
  const run = await instance.run("revised");
  await instance.settled(run, "failed");
  await instance.call("POST", "/flows", { text: text({}) });
  await visit(`/runs/${run}`, async (page) => {
    await page.getByRole("button", { name: "Retry…" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Revision").selectOption("active");
    await dialog.getByRole("button", { name: "Retry", exact: true }).click();
    await page.waitForURL((url) => url.pathname.startsWith("/runs/") && !url.pathname.endsWith(run));
    await hasStatus(page, "completed");
  });
});

test("a flow is held in the page, every page says so, and it is let go", async () => {
  await visit("/hold", async (page) => {
    await page.getByText("No flow was ever held").waitFor();
    await page.getByRole("button", { name: "Hold a flow…" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Flow").selectOption("quick");
    await dialog.getByLabel("Reason").fill("a drill");
    await dialog.getByLabel("At most").fill("0");
    assert.equal(await dialog.getByRole("button", { name: "Hold", exact: true }).isDisabled(), true);
    await dialog.getByLabel("At most").fill("10");
    await dialog.getByRole("button", { name: "Hold", exact: true }).click();
    await page.getByRole("row", { name: /quick holding 0 .*a drill/ }).waitFor();
  });
  const run = await instance.run("quick");
  assert.equal((await instance.get(`/runs/${run}`)).status, "held");
  await visit(`/runs/${run}`, async (page) => {
    await hasStatus(page, "held");
    await page.locator('.why[data-cause="held"]', { hasText: "a drill" }).waitFor();
    await page.getByText("flowgate hold off quick").waitFor();
    assert.equal(await page.getByRole("button", { name: "Signal…" }).count(), 0, "it takes no signal");
  });
  await visit("/flows", (page) => page.getByRole("row", { name: /quick/ }).getByText("holding, 1 held").waitFor());
  await visit("/runs?status=held", (page) => page.locator("table.runs tr", { hasText: "held" }).first().waitFor());
  await visit("/flows/quick", async (page) => {
    await page.getByText("holding, 1 held").waitFor();
    await page.getByRole("button", { name: "Let go…" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Let go", exact: true }).click();
    await instance.settled(run, "completed");
    await page.getByRole("button", { name: "Hold…" }).waitFor();
    assert.equal(await page.locator(".gate-badge").count(), 0);
  });
});

/** The flow that is deployed; its second step waits for a person, and its revisions differ in their last. */
const staged = (last, extra = {}) => JSON.stringify({
  flow: "staged",
  steps: { first: {}, ask: { subscribes: ["step:first"], wait: { signal: "go", timeout: "1h" }, emits: ["gone"], ...extra }, last: { subscribes: ["gone"], ...last } },
});
const SMOKE = "strategy: blue-green\ndrain_timeout: 2s\nverify_timeout: 20s\nreplay_rate: unlimited\nsmoke_tests: [{ name: ends, input: {} }]\n";
const phaseIs = (page, wanted) => page.locator(`h1[data-phase="${wanted}"]`).waitFor({ timeout: 60_000 });

test("a deployment that is started elsewhere appears, and its phases pass without a reload", async () => {
  const text = (last) => JSON.stringify({ flow: "shipped", steps: { first: {}, last: { subscribes: ["step:first"], ...last } } });
  await instance.call("POST", "/flows", { text: text({}) });
  await instance.settled(await instance.run("shipped"), "completed");
  await visit("/deployments", async (page) => {
    await page.getByText("Nothing was deployed yet").waitFor();
    await page.evaluate(() => (window.sameDocument = true));
    const begun = await instance.call("POST", "/flows/shipped/deployments", { text: text({ description: "mended" }), deploy: SMOKE.replace("ends", "ships"), author: "ada", note: "mended" });
    const row = page.getByRole("row", { name: /shipped/ });
    await row.getByText("audit").waitFor({ timeout: 30_000 });
    // The audit waits for as many runs as there were before.
    await instance.run("shipped");
    await row.getByText("by ada: mended").waitFor();
    await row.getByText("completed").waitFor({ timeout: 30_000 });
    await row.locator(`a[title="${begun.deployment_id}"]`).click();
    await phaseIs(page, "completed");
    const states = await page.locator(".phases [data-phase]").evaluateAll((all) => all.map((each) => `${each.dataset.phase} ${each.dataset.state}`));
    assert.deepEqual(states, ["plan done", "drain done", "deploy done", "verify done", "resume done", "audit done"]);
    await page.locator('[data-smoke="ships"][data-passed="true"]').waitFor();
    await page.locator('[data-holds="true"]').waitFor();
    await page.getByRole("table", { name: "before and after" }).getByText("Throughput").waitFor();
    assert.equal(await page.evaluate(() => window.sameDocument), true, "the page was loaded again");
    const [report] = await Promise.all([page.context().waitForEvent("page"), page.getByRole("link", { name: "Report" }).click()]);
    await report.getByRole("heading", { name: "Deployment of shipped" }).waitFor();
    const status = await report.locator(".status.good").evaluate((element) => getComputedStyle(element).backgroundColor);
    assert.notEqual(status, "rgba(0, 0, 0, 0)", "the report has its style");
  });
});

test("a deployment is planned and started in the page, holds what starts, and is rolled back by its button", async () => {
  await instance.call("POST", "/flows", { text: staged({}) });
  const waiting = await instance.run("staged");
  await instance.settled(waiting, "waiting");
  await visit("/deployments?flow=staged&new=1", async (page) => {
    const dialog = page.getByRole("dialog");
    const file = dialog.getByLabel(/^Flow file/);
    await until("the active revision is there to be changed", async () => (await file.inputValue()).includes('"staged"'));
    await file.fill("steps: {}");
    await dialog.getByText("does not name its flow").waitFor();
    await file.fill(staged({ description: "changed" }));
    await dialog.getByLabel("Drain timeout").fill("5m");
    await dialog.getByLabel("Note").fill("a drill");
    await dialog.getByRole("button", { name: "Show the plan" }).click();
    await dialog.getByRole("row", { name: new RegExp(`${waiting.slice(0, 13)}.*ask`) }).waitFor();
    assert.deepEqual((await instance.get("/deployments?flow=staged")).items, [], "a plan changes nothing");
    await dialog.getByRole("button", { name: "Start the deployment" }).click();
    await page.waitForURL(/\/deployments\/staged\/[0-9a-f]+$/);
    await phaseIs(page, "drain");
    await page.getByText("1 open run left").waitFor();
    const held = [await instance.run("staged"), await instance.run("staged")];
    assert.equal((await instance.get(`/runs/${held[0]}`)).status, "held");
    await until("the page counts what is held", async () => (await page.locator('[data-count="Held"]').innerText()) === "2");
    await page.getByRole("button", { name: "Roll back…" }).click();
    const asking = page.getByRole("dialog");
    await asking.getByLabel("Why").fill("changed my mind");
    await asking.getByRole("button", { name: "Roll back", exact: true }).click();
    await phaseIs(page, "rolled_back");
    await page.locator(".why", { hasText: "somebody asked for it: changed my mind" }).waitFor();
    await page.locator('.phases [data-phase="drain"][data-state="turned"]').waitFor();
    await page.locator('[data-holds="true"]').waitFor();
    assert.equal(await page.getByRole("button", { name: "Roll back…" }).count(), 0);
    for (const run of held) await instance.settled(run, "waiting");
  });
  await visit("/", (page) => page.locator(".band").waitFor());
});

test("a revision that fails its smoke test is rolled back, and the page says why", async () => {
  const begun = await instance.call("POST", "/flows/shipped/deployments", {
    text: JSON.stringify({ flow: "shipped", steps: { first: {}, last: { subscribes: ["step:first"], wait: { signal: "never", timeout: "1ms" } } } }), deploy: SMOKE.replace("ends", "ships"),
  });
  await visit(`/deployments/shipped/${begun.deployment_id}`, async (page) => {
    await phaseIs(page, "rolled_back");
    await page.locator(".why", { hasText: "smoke tests failed: ships" }).waitFor();
    const smoke = page.locator('[data-smoke="ships"][data-passed="false"]');
    await smoke.getByText(/status: wanted completed, found failed/).waitFor();
    await smoke.getByRole("link").click();
    await hasStatus(page, "failed");
  });
  await visit("/deployments/shipped/nothing", async (page) => {
    await page.locator(".problem", { hasText: "has no deployment" }).waitFor();
  }, { expected: /status of 404/ });
});

test("each of six causes of being stuck is explained where one looks first", async () => {
  await instance.call("PATCH", "/queues/mail", { paused: true });
  const rows = [
    ["approval", "signal", "waits for the signal approval"],
    ["retrying", "retrying", "HTTP 503 from the bank"],
    ["timer", "timer", "waits for its timer"],
    ["paused", "paused", "is paused"],
    ["workerless", "no_worker", "score"],
    ["slow", "leased", "is running: attempt 1"],
  ];
  for (const [flow, cause, text] of rows) {
    const run = await instance.run(flow);
    await until(`${flow} is ${cause}`, async () => (await instance.get(`/runs/${run}/why`)).reasons[0].cause === cause);
    await visit(`/runs/${run}`, async (page) => {
      const why = page.locator(`.why[data-cause="${cause}"]`);
      await why.waitFor();
      assert.match((await why.innerText()).replaceAll("\n", " "), new RegExp(text), flow);
      const box = await why.boundingBox();
      assert.ok(box && box.y < 400, "the answer stands at the top of the page");
    });
  }
});

test("a run that waits for a permit says who holds it", async () => {
  const holder = await instance.run("limited");
  await until("the holder runs", async () => (await instance.get(`/runs/${holder}/why`)).reasons[0].cause === "leased");
  const run = await instance.run("limited");
  await until("the other is parked", async () => (await instance.get(`/runs/${run}/why`)).reasons[0].cause === "parked");
  await visit(`/runs/${run}`, async (page) => {
    await page.locator(`.why a[href="/runs/${holder}"]`).waitFor();
  });
});

test("five thousand runs are filtered, searched and paged through", async () => {
  const before = (await instance.get("/runs?flow=quick&limit=1")).total;
  const all = before + RUNS;
  const began = performance.now();
  let next = 0;
  await Promise.all(Array.from({ length: 32 }, async () => {
    for (let n = next++; n < RUNS; n = next++) {
      await instance.run("quick", { key: `quick-${n}`, tags: { tenant: n % 10 === 0 ? "acme" : "globex" } });
    }
  }));
  console.log(`${RUNS} runs started in ${Math.round(performance.now() - began)} ms`);
  await until("all of them completed", async () => (await instance.get("/runs?flow=quick&status=completed&limit=1")).total === all, 120_000);
  await visit("/runs?flow=quick", async (page) => {
    const total = page.locator("[data-total]");
    await until("the total is there", async () => Number(await total.getAttribute("data-total")) === all);
    const ids = () => page.locator("table.runs tbody tr .cell-id a").evaluateAll((links) => links.map((link) => link.title));
    const seen = new Set(await ids());
    assert.equal(seen.size, 50);
    for (let n = 1; n <= all / 50 + 1; n += 1) {
      const first = (await ids())[0];
      const older = page.getByRole("button", { name: "Older" });
      if (await older.isDisabled()) break;
      await older.click();
      await until(`page ${n + 1}`, async () => {
        const now = await ids();
        return now.length > 0 && now[0] !== first;
      });
      for (const id of await ids()) {
        assert.ok(!seen.has(id), `run ${id} is on two pages`);
        seen.add(id);
      }
    }
    assert.equal(seen.size, all, "every run is on one page");
    await page.goBack();
    await page.goBack();
    await page.getByRole("button", { name: "Newest" }).click();
    await page.waitForURL((url) => !url.searchParams.has("after"));

    await page.getByLabel("tag, as name=value").fill("tenant=acme");
    await page.keyboard.press("Enter");
    await until("the tag filters", async () => Number(await total.getAttribute("data-total")) === RUNS / 10);
    await page.getByRole("button", { name: "failed", exact: true }).click();
    await page.getByText("No run matches").waitFor();
    assert.match(page.url(), /status=failed/);
    await page.getByRole("button", { name: "clear", exact: true }).click();

    await page.keyboard.press("/");
    await page.keyboard.type("quick-4711");
    await until("the key is found", async () => (await ids()).length === 1);
    const [found] = await ids();
    assert.equal((await instance.get(`/runs/${found}`)).key, "quick-4711");
  });
});

test("several runs are cancelled at once, after a look at which", async () => {
  const runs = [await instance.run("timer", { tags: { batch: "bulk" } }), await instance.run("timer", { tags: { batch: "bulk" } })];
  for (const run of runs) await instance.settled(run, "waiting");
  await visit("/runs?tag=batch%3Dbulk", async (page) => {
    await page.getByText("All 2 that match").waitFor();
    await page.locator(".bulk").getByRole("button", { name: "Cancel…" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByText("2 runs match").waitFor();
    for (const run of runs) assert.equal((await instance.get(`/runs/${run}`)).status, "waiting", "a dry run changes nothing");
    await dialog.getByRole("button", { name: "Cancel 2 runs" }).click();
    await dialog.waitFor({ state: "detached" });
  });
  for (const run of runs) assert.equal((await instance.get(`/runs/${run}`)).status, "cancelled");
});

test("a run with ten thousand events opens in under a second, and older ones come on demand", async () => {
  const run = await instance.run("many");
  await instance.settled(run, "completed");
  const last = (await instance.get(`/runs/${run}/events?order=desc&limit=1`)).items[0].seq;
  assert.ok(last >= 10_000, `${last} events`);
  const view = await open(browser, instance.base);
  const { page } = view;
  await page.goto(instance.base + "/runs");
  await page.locator("table.runs tr").first().waitFor();
  const began = performance.now();
  await page.goto(`${instance.base}/runs/${run}`);
  await page.locator(".event-type", { hasText: "run.completed" }).waitFor();
  const took = Math.round(performance.now() - began);
  console.log(`a run with ${last} events is open after ${took} ms`);
  if (TIMED) assert.ok(took < OPEN_MS_MAX, `${took} ms`);
  assert.ok((await page.locator(".event-row").count()) < 60, "only the rows that can be seen are drawn");
  const foot = page.locator("[data-loaded]");
  assert.equal(Number(await foot.getAttribute("data-loaded")), 200);
  await page.locator(".events-frame").evaluate((frame) => frame.scrollTo(0, frame.scrollHeight));
  await until("older ones are loaded", async () => Number(await foot.getAttribute("data-loaded")) >= 400);
  wrong.push(...view.wrong);
  await view.close();
});

test("a lost connection is shown, and the page goes on by itself when the process is back", async () => {
  const run = await instance.run("approval");
  await instance.settled(run, "waiting");
  // The console tells of the connections that are refused meanwhile, as it should.
  const view = await open(browser, instance.base);
  const { page } = view;
  await page.goto(`${instance.base}/runs/${run}`);
  const is = (wanted) => until(`the connection is ${wanted}`, async () => (await page.locator(".sidebar [data-connection]").getAttribute("data-connection")) === wanted, 30_000);
  await is("open");
  await page.evaluate(() => (window.sameDocument = true));
  await instance.kill();
  await is("lost");
  instance.spawn();
  await instance.ready();
  await is("open");
  await instance.call("POST", `/runs/${run}/signal`, { signal: "approval", data: { approved: true } });
  await hasStatus(page, "completed");
  assert.equal(await page.evaluate(() => window.sameDocument), true, "the page was loaded again");
  await view.close();
});

test("keys reach every page, and every control can be reached by keys", async () => {
  await visit("/", async (page) => {
    await page.locator(".band").waitFor();
    for (const [key, path] of [["r", "/runs"], ["f", "/flows"], ["s", "/schedules"], ["h", "/hold"], ["q", "/queues"], ["d", "/dead"], ["u", "/subscribers"], ["i", "/instances"], ["p", "/deployments"], ["o", "/"]]) {
      await page.keyboard.press("g");
      await page.keyboard.press(key);
      await page.waitForURL((url) => url.pathname === path);
    }
    await page.keyboard.press("Tab");
    const first = await page.evaluate(() => document.activeElement?.textContent);
    assert.equal(first, "Skip to the page");
  });
});

test("texts that try to be code are shown as texts in every field", async () => {
  const run = await instance.run("evil", { key: XSS[0], tags: { note: XSS[1], more: XSS[2] }, input: Object.fromEntries(XSS.map((text, at) => [text, [text, at]])) });
  await instance.settled(run, "failed");
  const waiting = await instance.run("approval");
  await instance.settled(waiting, "waiting");
  await instance.call("POST", `/runs/${waiting}/signal`, { signal: XSS[0].replaceAll(/[^a-z]/g, ""), data: { note: XSS } }).catch(() => null);
  await instance.call("POST", `/runs/${waiting}/cancel`, { reason: XSS.join(" ") });
  const changed = JSON.parse(files["evil.json"]);
  changed.steps.first.description = XSS[3];
  await instance.call("POST", "/flows/evil/deployments", { text: JSON.stringify(changed), author: XSS[0], note: XSS.join(" "), deploy: JSON.stringify({ smoke_tests: [{ name: "evil", input: { note: XSS[2] } }] }) });
  await until("it was rolled back", async () => (await instance.get("/flows/evil/deployments/latest")).ended_at);
  const pages = [
    "/", "/runs", `/runs?search=${encodeURIComponent(XSS[0])}`, `/runs?tag=${encodeURIComponent(`note=${XSS[1]}`)}`,
    `/runs/${run}`, `/runs/${run}?tab=logs`, `/runs/${run}?tab=data`, `/runs/${run}?step=first`, `/runs/${run}?step=second`,
    `/runs/${waiting}`, "/flows", "/flows/evil", "/flows/evil?tab=file", "/flows/evil?start=1", "/schedules", "/schedules/evil%2Fnightly",
    "/dead", "/dead?view=list", "/hold", "/queues", "/subscribers", "/instances", "/deployments", "/deployments/evil/latest", "/deployments?flow=evil&new=1",
    `/flows/${encodeURIComponent(XSS[1])}`, `/runs?flow=${encodeURIComponent(XSS[0])}&since=${encodeURIComponent(XSS[1])}`,
  ];
  for (const path of pages) {
    const isMissing = path.startsWith("/flows/%3C") || path.includes("since=");
    const view = await open(browser, instance.base);
    await view.page.goto(instance.base + path);
    await view.page.locator("main h1, main .problem, main .empty").first().waitFor();
    await view.page.waitForLoadState("networkidle", { timeout: 1_500 }).catch(() => null);
    assert.equal(await hacked(view.page), false, path);
    assert.equal(await view.page.locator("main script, main iframe, main img").count(), 0, path);
    wrong.push(...view.wrong.filter((line) => !(isMissing && /40\d/.test(line))).map((line) => `${path}: ${line}`));
    await view.close();
  }
  await visit(`/runs/${run}?tab=data`, async (page) => {
    await page.locator(".json").first().waitFor();
    const text = await page.locator("main").innerText();
    for (const each of XSS) assert.ok(text.includes(each), `${each} is not shown`);
  });
});

test("every page is drawn light and dark, wide and narrow, without a scroll bar to the side", async () => {
  const failed = (await instance.get("/runs?status=failed&limit=1")).items[0].run_id;
  const waiting = (await instance.get("/runs?status=waiting&limit=1")).items[0].run_id;
  const done = (await instance.get("/runs?flow=order&limit=1")).items[0].run_id;
  const deployed = (await instance.get("/deployments?flow=shipped")).items;
  const pages = {
    overview: "/", runs: "/runs", "run-failed": `/runs/${failed}`, "run-waiting": `/runs/${waiting}`, "run-completed": `/runs/${done}`,
    "run-logs": `/runs/${done}?tab=logs`, "run-data": `/runs/${done}?tab=data`, flows: "/flows", flow: "/flows/order", "flow-start": "/flows/order?start=1",
    schedules: "/schedules", schedule: "/schedules/evil%2Fnightly", hold: "/hold", queues: "/queues", dead: "/dead", "dead-list": "/dead?view=list",
    subscribers: "/subscribers", instances: "/instances", deployments: "/deployments",
    "deployment-good": `/deployments/shipped/${deployed.at(-1).deployment_id}`, "deployment-back": "/deployments/shipped/latest", "deployment-new": "/deployments?flow=order&new=1",
  };
  for (const theme of ["light", "dark"]) {
    for (const width of [1280, 400]) {
      const view = await open(browser, instance.base, { theme, width });
      for (const [name, path] of Object.entries(pages)) {
        await view.page.goto(instance.base + path);
        await view.page.locator("main h1").waitFor();
        await view.page.waitForTimeout(300);
        assert.ok((await overflow(view.page)) <= 0, `${name} is wider than ${width} px`);
        await view.page.screenshot({ path: join(SHOTS, `${name}-${theme}-${width}.png`), fullPage: true });
      }
      wrong.push(...view.wrong.map((line) => `${theme} ${width}: ${line}`));
      await view.close();
    }
  }
});

test("the picture of the README is a run of the demo", async (context) => {
  const picture = process.env.FLOWGATE_PICTURE;
  if (!picture) return context.skip("it is made with `cargo xtask browser --picture`");
  const demo = await Demo.start();
  const view = await open(browser, demo.base, { width: 1280, height: 860 });
  try {
    const { page } = view;
    const done = await until("a run of the demo completed", async () => (await demo.get("/runs?flow=order&status=completed&limit=1")).items[0]);
    await page.goto(`${demo.base}/runs/${done.run_id}`);
    await page.locator(".event-type", { hasText: "run.completed" }).waitFor();
    await page.locator(".bar").first().waitFor();
    mkdirSync(dirname(picture), { recursive: true });
    await view.page.screenshot({ path: picture });
    assert.deepEqual(view.wrong, []);
  } finally {
    await view.close();
    await demo.stop();
  }
});

test("the choice of a theme is kept", async () => {
  await visit("/deployments", async (page) => {
    const ground = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
    const light = await ground();
    await page.locator(".sidebar").getByRole("button", { name: "dark", exact: true }).click();
    const dark = await ground();
    assert.notEqual(dark, light);
    await page.reload();
    await page.locator("main h1").waitFor();
    assert.equal(await ground(), dark);
  });
});

test("no page had an error, a report of the policy, a dialog or a request to another host", () => {
  assert.deepEqual(wrong, []);
});
