/** All runs: found by filter and search, page by page, and steered several at once. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { isOpen } from "../model/gates";
import { navigate, useQuery } from "../model/route";
import { apiQuery, filterOf, isEmpty, splitTag, type RunsFilter } from "../model/runs_filter";
import { useForbidden } from "../model/session";
import { count, plural, shortened } from "../model/words";
import { useReloadOnRuns, useResource } from "../net/resource";
import { useLiveRuns } from "../net/live";
import { RUN_STATUSES, type FlowItem, type LiveRuns, type Page, type RunItem, type RunStatus } from "../net/types";
import { Ago, Button, Clipped, Command, Empty, FlowLink, Loading, PageHead, Problem, Revision, RunLink, State, Table, Tags, Took, type Column } from "../ui/basics";
import { Glyph, Icon } from "../ui/icons";
import { BulkDialog, SelectionDialog, type BulkAction } from "./runs_bulk";

const PAGE = 50;

export function RunsPage() {
  const [query, setQuery] = useQuery();
  const filter = filterOf(query);
  const after = query.get("after");
  const path = "/runs?" + apiQuery(filter, PAGE, after);
  const { data, error, loading, reload, change } = useResource<Page<RunItem>>(path, after ? {} : { every: 15_000 });
  const [selected, setSelected] = useState<Set<string>>(new Set());
  const [dialog, setDialog] = useState<{ action: BulkAction; all: boolean } | null>(null);
  const forbidden = useForbidden("run");
  useEffect(() => setSelected(new Set()), [path]);

  // A row that is shown changes at once; whether others come or go is asked less often.
  useLiveRuns(
    useCallback((live: LiveRuns) => {
      const news = new Map(live.runs.map((run) => [run.run_id, run]));
      change((page) =>
        page.items.some((item) => isNews(item, news.get(item.run_id)?.status))
          ? { ...page, items: page.items.map((item) => withStatus(item, news.get(item.run_id))) }
          : page,
      );
    }, [change]),
  );
  useReloadOnRuns(reload, 2_500, () => after === null);

  const items = data?.items ?? [];
  const chosen = items.filter((item) => selected.has(item.run_id));
  const total = data?.total ?? items.length;
  return (
    <>
      <PageHead title="Runs" about={data ? <TotalText total={total} filter={filter} /> : " "}>
        <Search value={filter.search} focus={query.has("focus")} onChange={(search) => setQuery({ search, after: null, focus: null }, "replace")} />
      </PageHead>
      <Filters filter={filter} onChange={(change) => setQuery({ ...change, after: null })} />
      {error ? <Problem error={error} retry={reload} /> : null}
      {chosen.length > 0 || (total > 0 && !isEmpty(filter)) ? (
        <BulkBar
          chosen={chosen.length}
          total={total}
          filter={filter}
          forbidden={forbidden}
          onAct={(action, all) => setDialog({ action, all })}
          onClear={() => setSelected(new Set())}
        />
      ) : null}
      {!data && !error ? <Loading rows={10} /> : null}
      {data && items.length === 0 ? <NoRuns filter={filter} after={after} /> : null}
      {items.length > 0 ? (
        <div class={loading ? "stale" : ""}>
          <Table kind="runs" label="runs" columns={columns(selected, setSelected)} rows={items} keyOf={(run) => run.run_id} busy={loading} />
        </div>
      ) : null}
      <Pager after={after} next={data?.next ?? null} onGo={(cursor) => {
        setQuery({ after: cursor });
        window.scrollTo(0, 0);
      }} />
      {dialog && dialog.all ? (
        <BulkDialog action={dialog.action} filter={filter} onClose={() => setDialog(null)} onDone={reload} />
      ) : null}
      {dialog && !dialog.all ? (
        <SelectionDialog action={dialog.action} runs={chosen} onClose={() => setDialog(null)} onDone={() => {
          setSelected(new Set());
          reload();
        }} />
      ) : null}
    </>
  );
}

function isNews(item: RunItem, status: RunStatus | undefined): boolean {
  return status !== undefined && status !== item.status;
}

function withStatus(item: RunItem, news: LiveRuns["runs"][number] | undefined): RunItem {
  if (!news || !isNews(item, news.status)) return item;
  const isOver = !isOpen(news.status);
  const ended_at = isOver ? (item.ended_at ?? news.at) : null;
  const duration_ms = ended_at ? Math.max(0, Date.parse(ended_at) - Date.parse(item.started_at)) : null;
  return { ...item, status: news.status, ended_at, duration_ms: item.duration_ms ?? duration_ms };
}

function TotalText({ total, filter }: { total: number; filter: RunsFilter }) {
  return <span data-total={total}>{plural(total, "run")}{isEmpty(filter) ? "" : " match"}</span>;
}

function columns(selected: Set<string>, setSelected: (selected: Set<string>) => void): Column<RunItem>[] {
  const toggle = (run: string) => {
    const next = new Set(selected);
    if (!next.delete(run)) next.add(run);
    setSelected(next);
  };
  return [
    {
      name: "select",
      class: "cell-select",
      cell: (run) => (
        <input type="checkbox" aria-label={`select run ${run.run_id}`} checked={selected.has(run.run_id)} onChange={() => toggle(run.run_id)} />
      ),
    },
    { name: "Status", class: "cell-status", cell: (run) => <State state={run.status} /> },
    { name: "Run", class: "cell-id", cell: (run) => <RunLink run={run.run_id} /> },
    { name: "Flow", class: "cell-flow", cell: (run) => <><FlowLink flow={run.flow} /> <Revision revision={run.revision} /></> },
    { name: "Started", class: "cell-time", cell: (run) => <Ago at={run.started_at} /> },
    { name: "Took", class: "cell-num", cell: (run) => <Took ms={run.duration_ms} since={run.started_at} /> },
    { name: "Details", class: "cell-about", cell: (run) => <About run={run} /> },
  ];
}

function About({ run }: { run: RunItem }) {
  return (
    <div class="about">
      {run.failure ? (
        <span class="about-failure">
          {run.failure.step ? <code>{shortened(run.failure.step, 40)}</code> : null} <Clipped text={run.failure.message ?? run.failure.kind ?? ""} />
        </span>
      ) : null}
      {run.key ? <span class="tag" title={`key ${run.key}`}><span class="faint">key</span> {shortened(run.key, 40)}</span> : null}
      <Tags tags={run.tags} />
      {run.retry_of ? <span class="faint">retry of <RunLink run={run.retry_of} /></span> : null}
    </div>
  );
}

function Search({ value, focus, onChange }: { value: string; focus: boolean; onChange: (value: string) => void }) {
  const [text, setText] = useState(value);
  const input = useRef<HTMLInputElement>(null);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (focus) input.current?.focus();
  }, [focus]);
  const submit = (next: string) => {
    clearTimeout(timer.current);
    if (next.trim() !== value) onChange(next.trim());
  };
  return (
    <form class="search" role="search" onSubmit={(event) => {
      event.preventDefault();
      submit(text);
    }}>
      <Icon name="search" size={14} />
      <input
        ref={input}
        type="search"
        placeholder="Run id or key"
        aria-label="search by the beginning of a run id, or by a key"
        value={text}
        onInput={(event) => {
          const next = event.currentTarget.value;
          setText(next);
          clearTimeout(timer.current);
          timer.current = setTimeout(() => submit(next), 300);
        }}
        onKeyDown={(event) => {
          if (event.key === "Escape") event.currentTarget.blur();
        }}
      />
      <kbd aria-hidden="true">/</kbd>
    </form>
  );
}

const SINCE = [
  ["", "any time"],
  ["10m", "last 10 minutes"],
  ["1h", "last hour"],
  ["24h", "last day"],
  ["7d", "last week"],
] as const;

function Filters({ filter, onChange }: { filter: RunsFilter; onChange: (change: Record<string, string | string[] | null>) => void }) {
  const flows = useResource<Page<FlowItem>>("/flows");
  const names = flows.data?.items.map((flow) => flow.flow) ?? [];
  const toggle = (status: RunStatus) => {
    const next = filter.status.includes(status) ? filter.status.filter((each) => each !== status) : [...filter.status, status];
    onChange({ status: RUN_STATUSES.filter((each) => next.includes(each)).join(",") });
  };
  const isKnownSince = SINCE.some(([value]) => value === filter.since);
  return (
    <div class="filters" role="group" aria-label="filters">
      <div class="chips" role="group" aria-label="status">
        {RUN_STATUSES.map((status) => (
          <button key={status} type="button" class="chip" aria-pressed={filter.status.includes(status)} onClick={() => toggle(status)}>
            <Glyph state={status} size={12} /> {status}
          </button>
        ))}
      </div>
      <select aria-label="flow" value={filter.flow} onChange={(event) => onChange({ flow: event.currentTarget.value })}>
        <option value="">any flow</option>
        {[...new Set([...names, ...(filter.flow ? [filter.flow] : [])])].map((name) => (
          <option key={name} value={name}>{shortened(name, 40)}</option>
        ))}
      </select>
      <select aria-label="started" value={filter.since} onChange={(event) => onChange({ since: event.currentTarget.value })}>
        {SINCE.map(([value, name]) => <option key={value} value={value}>{name}</option>)}
        {isKnownSince ? null : <option value={filter.since}>since {shortened(filter.since, 24)}</option>}
      </select>
      <TagFilter tags={filter.tags} onChange={(tag) => onChange({ tag })} />
      {isEmpty(filter) ? null : (
        <button type="button" class="link" onClick={() => navigate("/runs")}>clear</button>
      )}
    </div>
  );
}

function TagFilter({ tags, onChange }: { tags: string[]; onChange: (tags: string[]) => void }) {
  const [text, setText] = useState("");
  return (
    <div class="tag-filter">
      {tags.map((tag) => {
        const [name, value] = splitTag(tag);
        return (
          <span key={tag} class="tag">
            <span class="faint">{shortened(name, 24)}</span> {shortened(value, 32)}
            <button type="button" class="copy" aria-label={`without the tag ${tag}`} onClick={() => onChange(tags.filter((each) => each !== tag))}>
              <Icon name="close" size={11} />
            </button>
          </span>
        );
      })}
      <form onSubmit={(event) => {
        event.preventDefault();
        if (!text.includes("=")) return;
        onChange([...new Set([...tags, text.trim()])]);
        setText("");
      }}>
        <input class="tag-input" placeholder="tag=value" aria-label="tag, as name=value" value={text} pattern=".+=.*" onInput={(event) => setText(event.currentTarget.value)} />
      </form>
    </div>
  );
}

function BulkBar(props: {
  chosen: number;
  total: number;
  filter: RunsFilter;
  forbidden: string | undefined;
  onAct: (action: BulkAction, all: boolean) => void;
  onClear: () => void;
}) {
  const all = props.chosen === 0;
  const bySearch = all && props.filter.search !== "";
  const why = props.forbidden ?? (bySearch ? "a search cannot be acted on as a whole: select runs" : undefined);
  return (
    <div class="bulk" role="group" aria-label="actions on several runs">
      <span>{all ? `All ${count(props.total)} that match` : plural(props.chosen, "run") + " selected"}</span>
      <Button kind="quiet" disabled={why !== undefined} title={why} onClick={() => props.onAct("cancel", all)}>Cancel…</Button>
      <Button kind="quiet" disabled={why !== undefined} title={why} onClick={() => props.onAct("retry", all)}>Retry…</Button>
      {all ? null : <button type="button" class="link" onClick={props.onClear}>clear the selection</button>}
    </div>
  );
}

function NoRuns({ filter, after }: { filter: RunsFilter; after: string | null }) {
  if (after) return <Empty title="No more runs"><p class="muted"><a href="/runs">Back to the newest</a></p></Empty>;
  if (!isEmpty(filter)) {
    return (
      <Empty title="No run matches">
        <p class="muted">A search finds the beginning of a run id, or a whole key. <a href="/runs">Show all runs</a></p>
      </Empty>
    );
  }
  return (
    <Empty title="No run has been started yet">
      <p class="muted">Start one from the page of a <a href="/flows">flow</a>, or from a terminal:</p>
      <Command text="flowgate runs start FLOW --input '{}'" />
    </Empty>
  );
}

/** Pages are places in the history of the browser: back is its own button. */
function Pager({ after, next, onGo }: { after: string | null; next: string | number | null; onGo: (cursor: string | null) => void }) {
  if (!after && next === null) return null;
  return (
    <nav class="pager" aria-label="pages of runs">
      <Button disabled={!after} onClick={() => onGo(null)}>Newest</Button>
      <Button disabled={!after} onClick={() => history.back()}>Newer</Button>
      <Button disabled={next === null} onClick={() => onGo(String(next))}>Older</Button>
    </nav>
  );
}
