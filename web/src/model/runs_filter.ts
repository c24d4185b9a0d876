/** The filter of a list of runs, between the address of the page and the query of the API. */

import { RUN_STATUSES, type RunStatus } from "../net/types";

export interface RunsFilter {
  flow: string;
  status: RunStatus[];
  tags: string[];
  since: string;
  until: string;
  search: string;
}

export function filterOf(query: URLSearchParams): RunsFilter {
  const wanted = (query.get("status") ?? "").split(",");
  return {
    flow: query.get("flow") ?? "",
    status: RUN_STATUSES.filter((status) => wanted.includes(status)),
    tags: query.getAll("tag").filter((tag) => tag.includes("=")),
    since: query.get("since") ?? "",
    until: query.get("until") ?? "",
    search: query.get("search") ?? "",
  };
}

export function apiQuery(filter: RunsFilter, limit: number, after: string | null): string {
  const params = new URLSearchParams();
  if (filter.flow) params.set("flow", filter.flow);
  if (filter.status.length > 0) params.set("status", filter.status.join(","));
  for (const tag of filter.tags) params.append("tag", tag);
  if (filter.since) params.set("since", filter.since);
  if (filter.until) params.set("until", filter.until);
  if (filter.search) params.set("search", filter.search);
  params.set("limit", String(limit));
  if (after) params.set("after", after);
  return params.toString();
}

/** The filter as the body of a bulk action; it has no search, since that finds one run. */
export function bulkFilter(filter: RunsFilter): Record<string, unknown> {
  const body: Record<string, unknown> = {};
  if (filter.flow) body["flow"] = filter.flow;
  if (filter.status.length > 0) body["status"] = filter.status;
  if (filter.tags.length > 0) {
    body["tags"] = Object.fromEntries(filter.tags.map((tag) => splitTag(tag)));
  }
  if (filter.since) body["since"] = filter.since;
  if (filter.until) body["until"] = filter.until;
  return body;
}

/** A name ends at the first `=`; a value may have more of them. */
export function splitTag(tag: string): [string, string] {
  const at = tag.indexOf("=");
  return at < 0 ? [tag, ""] : [tag.slice(0, at), tag.slice(at + 1)];
}

export function isEmpty(filter: RunsFilter): boolean {
  return (
    filter.flow === "" && filter.status.length === 0 && filter.tags.length === 0 &&
    filter.since === "" && filter.until === "" && filter.search === ""
  );
}
