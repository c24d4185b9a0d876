import { expect, test } from "vitest";
import { closed, holdOf, isOpen, letGoOf, summary } from "../src/model/gates";
import { RUN_STATUSES, type GateItem } from "../src/net/types";

const gate = (flow: string, state: GateItem["state"], held: number): GateItem => ({
  flow, state, generation: 1, held, hold_max: 100_000, oldest_at: null, age_ms: null, reason: null, deadline: null,
  replay_rate: null, deployment: null, canary: null, pools: [], set_at: null,
});

test("a held run has not ended", () => {
  expect(RUN_STATUSES.filter(isOpen)).toEqual(["held", "running", "waiting"]);
});

test("a gate that is open again is not told of", () => {
  const gates = [gate("a", "open", 0), gate("b", "holding", 1200), gate("c", "replaying", 3), gate("d", "draining", 0)];
  expect([...closed(gates).keys()]).toEqual(["b", "c", "d"]);
  expect(summary(gates[1]!)).toBe("holding, 1,200 held");
});

test("what is left out of a form is left to the server", () => {
  expect(holdOf({ reason: " ", max: "", span: "" })).toEqual({ body: { state: "holding" } });
  const whole = holdOf({ reason: " the bank is down ", max: "500", span: "1h30m" });
  expect(whole).toEqual({ body: { state: "holding", reason: "the bank is down", hold_max: 500, deadline: "1h30m" } });
  expect(letGoOf({ rate: "" })).toEqual({ body: { state: "open" } });
  expect(letGoOf({ rate: " 10 " })).toEqual({ body: { state: "open", rate: 10 } });
});

test("what makes no sense is said before it is asked for", () => {
  for (const max of ["0", "-1", "1.5", "many", "1000001"]) {
    expect(holdOf({ reason: "", max, span: "" }), max).toHaveProperty("mistake");
    expect(letGoOf({ rate: max }), max).toHaveProperty("mistake");
  }
  for (const span of ["soon", "10", "m", "1h 30m"]) expect(holdOf({ reason: "", max: "", span }), span).toHaveProperty("mistake");
});
