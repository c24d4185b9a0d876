import { expect, test } from "vitest";
import { href, queryOf, routeOf } from "../src/model/route";
import { apiQuery, bulkFilter, filterOf, isEmpty, splitTag } from "../src/model/runs_filter";

test("every page has an address", () => {
  const rows: [string, unknown][] = [
    ["/", { page: "overview" }],
    ["/runs", { page: "runs" }],
    ["/runs/", { page: "runs" }],
    ["/runs/019a8b2c-1f3e", { page: "run", run: "019a8b2c-1f3e" }],
    ["/flows/order", { page: "flow", flow: "order" }],
    ["/schedules/order%2Fnightly", { page: "schedule", name: "order/nightly" }],
    ["/hold", { page: "hold" }],
    ["/queues", { page: "queues" }],
    ["/dead", { page: "dead" }],
    ["/subscribers", { page: "subscribers" }],
    ["/instances", { page: "instances" }],
    ["/deployments", { page: "deployments" }],
    ["/deployments/order/019a8c1102f4", { page: "deployment", flow: "order", deployment: "019a8c1102f4" }],
    ["/deployments/order", { page: "missing" }],
    ["/deployments/order/a/b", { page: "missing" }],
    ["/nothing", { page: "missing" }],
    ["/runs/a/b", { page: "missing" }],
    ["/queues/a", { page: "missing" }],
    ["/flows/%E0%A4%A", { page: "flow", flow: "%E0%A4%A" }],
  ];
  for (const [path, route] of rows) expect(routeOf(path), path).toEqual(route);
});

test("a name with a slash comes back as it was", () => {
  for (const name of ["order/nightly", "a b", "<img>", "ü?&=#", "100%"]) {
    expect(routeOf(new URL(href(["schedules", name]), "http://x").pathname)).toEqual({ page: "schedule", name });
  }
});

test("empty parts of a query are left out", () => {
  expect(href(["runs"], { flow: "", status: null, tag: [] })).toBe("/runs");
  expect(href(["runs"], { flow: "a b", tag: ["x=1", "y=2"] })).toBe("/runs?flow=a+b&tag=x%3D1&tag=y%3D2");
});

test("a change of a query keeps what it does not name", () => {
  const old = new URLSearchParams("flow=order&after=9&tag=a=1&tag=b=2");
  expect(queryOf(old, { after: null, status: "failed" }).toString()).toBe("flow=order&tag=a%3D1&tag=b%3D2&status=failed");
  expect(old.get("after")).toBe("9");
});

test("the filter of the address is the filter of the API", () => {
  const filter = filterOf(new URLSearchParams("status=failed,running,held,nonsense&flow=order&tag=tenant=a=b&tag=bad&since=1h&search=019a"));
  expect(filter).toEqual({ flow: "order", status: ["held", "running", "failed"], tags: ["tenant=a=b"], since: "1h", until: "", search: "019a" });
  expect(apiQuery(filter, 50, "c1")).toBe("flow=order&status=held%2Crunning%2Cfailed&tag=tenant%3Da%3Db&since=1h&search=019a&limit=50&after=c1");
  expect(bulkFilter(filter)).toEqual({ flow: "order", status: ["held", "running", "failed"], tags: { tenant: "a=b" }, since: "1h" });
});

test("no filter is empty, and any part makes it not so", () => {
  expect(isEmpty(filterOf(new URLSearchParams("after=3&tab=x")))).toBe(true);
  for (const query of ["flow=a", "status=failed", "tag=a=b", "since=1h", "until=1h", "search=a"]) {
    expect(isEmpty(filterOf(new URLSearchParams(query))), query).toBe(false);
  }
});

test("a tag's name ends at its first equals sign", () => {
  expect([splitTag("a=b=c"), splitTag("a"), splitTag("=x")]).toEqual([["a", "b=c"], ["a", ""], ["", "x"]]);
});
