/** Addresses of pages: real ones, so that a view can be shared, kept and opened in another tab. */

import { useEffect, useState } from "preact/hooks";

export type Route =
  | { page: "overview" }
  | { page: "runs" }
  | { page: "run"; run: string }
  | { page: "flows" }
  | { page: "flow"; flow: string }
  | { page: "schedules" }
  | { page: "schedule"; name: string }
  | { page: "hold" }
  | { page: "queues" }
  | { page: "dead" }
  | { page: "subscribers" }
  | { page: "instances" }
  | { page: "deployments" }
  | { page: "deployment"; flow: string; deployment: string }
  | { page: "missing" };

function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

export function routeOf(path: string): Route {
  const segments = path.split("/").filter((segment) => segment !== "").map(decoded);
  const [first, second, third, ...more] = segments;
  if (first === undefined) return { page: "overview" };
  if (more.length > 0) return { page: "missing" };
  if (third !== undefined) {
    const isDeployment = first === "deployments" && second !== undefined;
    return isDeployment ? { page: "deployment", flow: second, deployment: third } : { page: "missing" };
  }
  if (second !== undefined) {
    switch (first) {
      case "runs":
        return { page: "run", run: second };
      case "flows":
        return { page: "flow", flow: second };
      case "schedules":
        return { page: "schedule", name: second };
      default:
        return { page: "missing" };
    }
  }
  switch (first) {
    case "runs":
    case "flows":
    case "schedules":
    case "hold":
    case "queues":
    case "dead":
    case "subscribers":
    case "instances":
    case "deployments":
      return { page: first };
    default:
      return { page: "missing" };
  }
}

/** A path with a query; parts that are empty are left out, so that a plain view has a plain address. */
export function href(segments: string[], query: Record<string, string | string[] | null | undefined> = {}): string {
  const params = queryOf(new URLSearchParams(), query).toString();
  return "/" + segments.map(encodeURIComponent).join("/") + (params === "" ? "" : "?" + params);
}

/** The query with these parts changed; an empty part goes. */
export function queryOf(old: URLSearchParams, change: Record<string, string | string[] | null | undefined>): URLSearchParams {
  const params = new URLSearchParams(old);
  for (const [name, value] of Object.entries(change)) {
    params.delete(name);
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") params.append(name, each);
    }
  }
  return params;
}

const listeners = new Set<() => void>();

export function navigate(to: string, how: "push" | "replace" = "push"): void {
  const here = location.pathname + location.search;
  if (to === here) return;
  if (how === "push") history.pushState(null, "", to);
  else history.replaceState(null, "", to);
  for (const listener of listeners) listener();
}

export interface Place {
  path: string;
  search: string;
}

export function usePlace(): Place {
  const [place, setPlace] = useState<Place>({ path: location.pathname, search: location.search });
  useEffect(() => {
    const look = () => setPlace({ path: location.pathname, search: location.search });
    listeners.add(look);
    window.addEventListener("popstate", look);
    return () => {
      listeners.delete(look);
      window.removeEventListener("popstate", look);
    };
  }, []);
  return place;
}

/** The query of the page, and a way to change parts of it. */
export function useQuery(): [URLSearchParams, (change: Record<string, string | string[] | null | undefined>, how?: "push" | "replace") => void] {
  const { search } = usePlace();
  return [
    new URLSearchParams(search),
    (change, how = "push") => {
      const params = queryOf(new URLSearchParams(location.search), change).toString();
      navigate(location.pathname + (params === "" ? "" : "?" + params), how);
    },
  ];
}

/** Makes plain links change the page without loading it again. */
export function takeOverLinks(): void {
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = (event.target as Element).closest("a");
    if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    if (link.pathname.startsWith("/api/")) return;
    event.preventDefault();
    navigate(link.pathname + link.search);
    document.querySelector("main")?.scrollTo(0, 0);
    window.scrollTo(0, 0);
  });
}
