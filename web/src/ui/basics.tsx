/** The small parts that every page is made of. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useTicking, serverNow } from "../model/clock";
import { absolute, moment, relative, rough, span } from "../model/time";
import { parts, shortId, shortRevision, shortened } from "../model/words";
import { href } from "../model/route";
import { ApiError } from "../net/api";
import { Glyph, Icon, type IconName } from "./icons";

/** A time that says how long ago it was, and goes on saying so. */
export function Ago({ at, empty = "–" }: { at: string | null | undefined; empty?: string }) {
  const time = at ? Date.parse(at) : NaN;
  const isTime = Number.isFinite(time);
  const text = useTicking((now) => (isTime ? relative(time, now) : ""), isTime);
  if (!isTime) return <span class="faint">{at ? shortened(at, 40) : empty}</span>;
  return (
    <time dateTime={new Date(time).toISOString()} title={absolute(time)}>
      {text}
    </time>
  );
}

/** A time in a sentence: when by the clock, and how long ago that is. */
export function At({ at }: { at: string }) {
  const time = Date.parse(at);
  const isTime = Number.isFinite(time);
  const text = useTicking((now) => (isTime ? relative(time, now) : ""), isTime);
  if (!isTime) return <>{at}</>;
  return (
    <time dateTime={at} title={absolute(time)} class="num">
      {moment(time, serverNow())} <span class="faint">({text})</span>
    </time>
  );
}

/** How long something took, or has taken so far. */
export function Took({ ms, since }: { ms: number | null | undefined; since?: string | null }) {
  const from = since ? Date.parse(since) : NaN;
  const isOpen = (ms === null || ms === undefined) && Number.isFinite(from);
  const text = useTicking((now) => (isOpen ? span(Math.max(0, now - from)) : ""), isOpen);
  if (isOpen) return <span class="num">{text}</span>;
  return <span class="num">{ms === null || ms === undefined ? "–" : span(ms)}</span>;
}

export function Age({ ms }: { ms: number | null | undefined }) {
  return <span class="num">{ms === null || ms === undefined ? "–" : rough(ms)}</span>;
}

/** A state: its mark and its name. */
export function State({ state, label }: { state: string; label?: string }) {
  return (
    <span class="state">
      <Glyph state={state} />
      <span>{label ?? state.replaceAll("_", " ")}</span>
    </span>
  );
}

export function RunLink({ run, whole = false }: { run: string; whole?: boolean }) {
  return (
    <a class="id" href={href(["runs", run])} title={run}>
      {whole ? run : shortId(run)}
    </a>
  );
}

export function FlowLink({ flow }: { flow: string }) {
  return (
    <a class="name" href={href(["flows", flow])} title={flow}>
      {shortened(flow, 60)}
    </a>
  );
}

export function Revision({ revision }: { revision: string }) {
  return (
    <span class="id faint" title={revision}>
      {shortRevision(revision)}
    </span>
  );
}

/** A text that may be long: cut by its room, and whole on hover. */
export function Clipped({ text, class: name = "" }: { text: string; class?: string }) {
  return (
    <span class={`clipped ${name}`} title={text}>
      {text.length > 400 ? shortened(text, 400) : text}
    </span>
  );
}

/** A message of the API, with its code, times and runs set off. */
export function Message({ text }: { text: string }) {
  return (
    <>
      {parts(shortened(text, 2_000)).map((part, at) => {
        switch (part.kind) {
          case "code":
            return <code key={at}>{part.text}</code>;
          case "time":
            return <At key={at} at={part.text} />;
          case "run":
            return <RunLink key={at} run={part.text} />;
          case "text":
            return part.text;
        }
      })}
    </>
  );
}

export function Copy({ text, label }: { text: string; label: string }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return;
    const id = setTimeout(() => setDone(false), 1_500);
    return () => clearTimeout(id);
  }, [done]);
  return (
    <button
      type="button"
      class="copy"
      aria-label={done ? "copied" : label}
      title={done ? "copied" : label}
      onClick={() => void copyText(text).then(() => setDone(true), () => {})}
    >
      <Icon name={done ? "check" : "copy"} size={13} />
    </button>
  );
}

/** The clipboard is there on loopback and over TLS alone; elsewhere the old way has to do. */
async function copyText(text: string): Promise<void> {
  if (window.isSecureContext) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "offscreen";
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

/** A command to type, with a button that copies it. */
export function Command({ text }: { text: string }) {
  return (
    <span class="command">
      <span class="prompt" aria-hidden="true">$</span>
      <code>{text}</code>
      <Copy text={text} label="copy the command" />
    </span>
  );
}

/** The help of the API: a command is one to copy, anything else is a text. */
export function Help({ text }: { text: string }) {
  return text.startsWith("flowgate ") ? <Command text={text} /> : <span><Message text={text} /></span>;
}

export function Button(props: {
  children: ComponentChildren;
  onClick?: () => void;
  kind?: "plain" | "primary" | "danger" | "quiet";
  type?: "button" | "submit";
  disabled?: boolean;
  title?: string | undefined;
  icon?: IconName;
  label?: string;
  pressed?: boolean;
}) {
  return (
    <button
      type={props.type ?? "button"}
      class={`button ${props.kind ?? "plain"}`}
      disabled={props.disabled ?? false}
      title={props.title}
      onClick={props.onClick}
      aria-label={props.label}
      aria-pressed={props.pressed}
    >
      {props.icon ? <Icon name={props.icon} size={14} /> : null}
      {props.children}
    </button>
  );
}

/** What went wrong, and the way out. */
export function Problem({ error, retry }: { error: Error; retry?: () => void }) {
  const api = error instanceof ApiError ? error : null;
  return (
    <div class="problem" role="alert">
      <Glyph state="failed" size={16} />
      <div>
        <p>
          <Message text={error.message || "something failed"} />
          {api?.path ? <code class="faint"> {shortened(api.path, 80)}</code> : null}
        </p>
        {api?.help ? <p class="muted"><Help text={api.help} /></p> : null}
        {api ? <p class="faint code-line">{api.code}</p> : null}
      </div>
      {retry ? <Button kind="plain" onClick={retry}>Try again</Button> : null}
    </div>
  );
}

/** There is nothing here, and what to do about it. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
    </div>
  );
}

/** Grey lines where data will be. They appear late, so that a quick answer does not flicker. */
export function Loading({ rows = 4 }: { rows?: number }) {
  return (
    <div class="loading" role="status" aria-label="loading">
      {Array.from({ length: rows }, (_, at) => (
        <div key={at} class="loading-line" />
      ))}
    </div>
  );
}

export function Panel(props: {
  title?: ComponentChildren;
  aside?: ComponentChildren;
  children: ComponentChildren;
  class?: string;
  flush?: boolean;
}) {
  return (
    <section class={`panel ${props.flush ? "flush" : ""} ${props.class ?? ""}`}>
      {props.title || props.aside ? (
        <header class="panel-head">
          <h2>{props.title}</h2>
          {props.aside ? <div class="panel-aside">{props.aside}</div> : null}
        </header>
      ) : null}
      <div class="panel-body">{props.children}</div>
    </section>
  );
}

export function PageHead(props: { title: ComponentChildren; about?: ComponentChildren; children?: ComponentChildren }) {
  return (
    <header class="page-head">
      <div class="page-title">
        <h1>{props.title}</h1>
        {props.about ? <p class="muted">{props.about}</p> : null}
      </div>
      {props.children ? <div class="actions">{props.children}</div> : null}
    </header>
  );
}

export interface Column<T> {
  name: string;
  /** What stands in the cell. */
  cell: (row: T) => ComponentChildren;
  class?: string;
}

/** A table that becomes a list of cards where there is no room for columns. */
export function Table<T>(props: {
  label: string;
  columns: Column<T>[];
  rows: T[];
  keyOf: (row: T) => string;
  busy?: boolean;
  rowClass?: (row: T) => string;
  /** A class of its own, for a table that looks different where there is no room. */
  kind?: string;
}) {
  return (
    <div class="table-frame">
      <table class={`table ${props.kind ?? ""}`} aria-label={props.label} aria-busy={props.busy ?? false}>
        <thead>
          <tr>
            {props.columns.map((column) => (
              <th key={column.name} scope="col" class={column.class}>{column.name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {props.rows.map((row) => (
            <tr key={props.keyOf(row)} class={props.rowClass?.(row)}>
              {props.columns.map((column) => (
                <td key={column.name} class={column.class} data-label={column.name}><div class="cell">{column.cell(row)}</div></td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function Tags({ tags }: { tags: Record<string, string> }) {
  const all = Object.entries(tags);
  if (all.length === 0) return null;
  return (
    <span class="tags">
      {all.slice(0, 4).map(([name, value]) => (
        <a key={name} class="tag" href={href(["runs"], { tag: `${name}=${value}` })} title={`${name}=${value}`}>
          <span class="faint">{shortened(name, 24)}</span> {shortened(value, 32)}
        </a>
      ))}
      {all.length > 4 ? <span class="faint">+{all.length - 4}</span> : null}
    </span>
  );
}

/** Tabs whose choice is in the address. */
export function Tabs(props: { label: string; tabs: { id: string; name: ComponentChildren }[]; current: string; onChange: (id: string) => void }) {
  const list = useRef<HTMLDivElement>(null);
  const move = (event: KeyboardEvent) => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (by === 0) return;
    event.preventDefault();
    const at = props.tabs.findIndex((tab) => tab.id === props.current);
    const next = props.tabs[(at + by + props.tabs.length) % props.tabs.length];
    if (!next) return;
    props.onChange(next.id);
    list.current?.querySelector<HTMLElement>(`[data-tab="${CSS.escape(next.id)}"]`)?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={props.label} ref={list} onKeyDown={move}>
      {props.tabs.map((tab) => (
        <button
          key={tab.id}
          type="button"
          role="tab"
          data-tab={tab.id}
          aria-selected={tab.id === props.current}
          tabIndex={tab.id === props.current ? 0 : -1}
          onClick={() => props.onChange(tab.id)}
        >
          {tab.name}
        </button>
      ))}
    </div>
  );
}

/** A few facts, name and value. */
export function Facts({ facts }: { facts: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Tells a time that lies ahead from one that has passed. */
export function isAhead(at: string | null): boolean {
  return at !== null && Date.parse(at) > serverNow();
}
