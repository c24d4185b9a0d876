// The flows of the browser tests: small, and each for one thing that a page must show.

/** Texts that try to be code. */
export const XSS = [
  "<script>window.hacked=1</script>",
  "<img src=x onerror=window.hacked=1>",
  "\"><svg onload=window.hacked=1>",
  "javascript:window.hacked=1",
  "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
  "</title></style><script>window.hacked=1</script>",
  "{{constructor.constructor('window.hacked=1')()}}",
];

const shell = (...lines) => ({ shell: ["cat > /dev/null", ...lines].join("\n") });
const emit = (event, data = {}) => `echo '${JSON.stringify({ emit: event, data })}'`;
/** A line of a program that says something, whatever quotes it has. */
const say = (message) => `printf '%s\\n' '${JSON.stringify(message).replaceAll("'", "'\\''")}'`;

const FLOWS = [
  {
    flow: "quick",
    description: "Ends at once",
    steps: { only: {} },
  },
  {
    flow: "order",
    description: "Charges and reserves in parallel, then ships",
    input: { type: "object", required: ["orderId"], properties: { orderId: { type: "integer", minimum: 1 } } },
    steps: {
      start: { run: shell("sleep 0.4", emit("payment.requested"), emit("stock.requested")), emits: ["payment.requested", "stock.requested"] },
      charge: { subscribes: ["payment.requested"], run: shell("echo charging", "sleep 1.2", emit("payment.done", { cents: 4200 }), "echo '{\"result\": {\"charged\": true}}'"), emits: ["payment.done"] },
      reserve: { subscribes: ["stock.requested"], run: shell("echo reserving", "sleep 0.6", emit("stock.done", { shelf: "B12" })), emits: ["stock.done"] },
      ship: { subscribes: ["payment.done", "stock.done"], run: shell("sleep 0.6", "echo '{\"state\": {\"parcel\": \"P-1001\"}}'") },
    },
  },
  {
    flow: "approval",
    steps: {
      request: { run: shell(emit("approval.requested")), emits: ["approval.requested"] },
      approve: { subscribes: ["approval.requested"], wait: { signal: "approval", match: { approved: true }, timeout: "48h" }, emits: ["approval.given"] },
      publish: { subscribes: ["approval.given"], run: shell("echo published") },
    },
  },
  {
    flow: "mending",
    description: "Fails until the file `mended` is there",
    steps: {
      prepare: { run: shell(emit("prepared"), "echo '{\"result\": {\"by\": \"prepare\"}}'"), emits: ["prepared"] },
      charge: { subscribes: ["prepared"], run: shell("test -e mended || { echo '{\"fail\": \"the card was declined\"}'; exit 1; }", emit("charged")), emits: ["charged"], retry: { attempts: 2, backoff: { initial: "50ms" } } },
      ship: { subscribes: ["charged"], run: shell("echo shipped") },
    },
  },
  // Six causes of not going on.
  { flow: "retrying", steps: { flaky: { run: shell("echo '{\"fail\": \"HTTP 503 from the bank\"}'", "exit 1"), retry: { attempts: 5, backoff: { initial: "10m", max: "10m" } } } } },
  { flow: "timer", steps: { sleep: { wait: { delay: "2h" } } } },
  { flow: "paused", steps: { mail: { queue: "mail", run: shell("echo sent") } } },
  { flow: "workerless", steps: { score: { run: { worker: "score" } } } },
  { flow: "slow", steps: { crunch: { run: shell("echo crunching", "sleep 600") } } },
  { flow: "limited", steps: { load: { run: shell("sleep 600"), concurrency: { limit: 1 } } } },
  {
    flow: "many",
    description: "Ten thousand events",
    steps: { emit: { run: shell("i=0; while [ $i -lt 9996 ]; do echo '{\"emit\": \"row\", \"data\": {\"n\": '$i'}}'; i=$((i+1)); done"), emits: ["row"] } },
  },
  {
    flow: "evil",
    description: XSS.join(" "),
    steps: {
      first: {
        description: XSS[1],
        run: shell(...XSS.map((text) => say({ log: text, level: "info" })), say({ state: { note: XSS[0] } }), say({ emit: "e.one", data: { [XSS[1]]: XSS } }), say({ result: { [XSS[2]]: XSS[0] } })),
        emits: ["e.one"],
      },
      second: { subscribes: ["e.one"], run: shell(say({ fail: XSS.join(" "), retry: false }), "exit 1") },
    },
    schedules: { nightly: { cron: "30 2 * * *", description: XSS[0], input: { note: XSS[1] } } },
  },
];

export const files = Object.fromEntries(FLOWS.map((flow) => [`${flow.flow}.json`, JSON.stringify(flow, null, 2)]));
