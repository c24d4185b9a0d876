/** All schedules. */

import { href, useQuery } from "../model/route";
import { plural } from "../model/words";
import { useResource } from "../net/resource";
import type { Page, ScheduleItem } from "../net/types";
import { Ago, Button, Clipped, Command, Empty, FlowLink, Loading, PageHead, Problem, RunLink, State, Table, type Column } from "../ui/basics";

export function SchedulesPage() {
  const [query, setQuery] = useQuery();
  const after = query.get("after");
  const path = "/schedules?limit=100" + (after ? "&after=" + encodeURIComponent(after) : "");
  const { data, error, reload } = useResource<Page<ScheduleItem>>(path, { every: 10_000 });
  const next = data?.next ?? null;
  return (
    <>
      <PageHead title="Schedules" about={data ? (next === null && !after ? plural(data.items.length, "schedule") : "by name") : " "} />
      {error ? <Problem error={error} retry={reload} /> : null}
      {!data && !error ? <Loading rows={5} /> : null}
      {data && data.items.length === 0 ? (
        <Empty title="Nothing starts runs by the clock">
          <p class="muted">A flow file adds schedules under <code>schedules</code>; others are added by hand:</p>
          <Command text="flowgate schedules add nightly --flow order --cron '30 2 * * *'" />
        </Empty>
      ) : null}
      {data && data.items.length > 0 ? <Table label="schedules" columns={COLUMNS} rows={data.items} keyOf={(schedule) => schedule.name} /> : null}
      {after || next !== null ? (
        <nav class="pager" aria-label="pages of schedules">
          <Button disabled={!after} onClick={() => setQuery({ after: null })}>First</Button>
          <Button disabled={next === null} onClick={() => setQuery({ after: String(next) })}>Next</Button>
        </nav>
      ) : null}
    </>
  );
}

/** When it is due, in a few words. */
export function When({ schedule }: { schedule: ScheduleItem }) {
  const { cron, every, at, zone } = schedule.schedule;
  if (cron) return <><code>{cron}</code> <span class="faint">{zone ?? "UTC"}</span></>;
  if (every) return <>every <code>{every}</code></>;
  if (at) return <>once, <Ago at={at} /></>;
  return <span class="faint">–</span>;
}

const COLUMNS: Column<ScheduleItem>[] = [
  { name: "Schedule", class: "cell-main", cell: (schedule) => <a class="name" href={href(["schedules", schedule.name])}><Clipped text={schedule.name} /></a> },
  { name: "Flow", cell: (schedule) => <FlowLink flow={schedule.flow} /> },
  { name: "When", cell: (schedule) => <When schedule={schedule} /> },
  { name: "Next", class: "cell-time", cell: (schedule) => (schedule.paused ? <State state="paused" /> : <Ago at={schedule.next_at} empty="never again" />) },
  { name: "Last run", cell: (schedule) => (schedule.last_run ? <RunLink run={schedule.last_run} /> : <span class="faint">none yet</span>) },
  { name: "From", cell: (schedule) => <span class="muted">{schedule.source.replaceAll("_", " ")}</span> },
];
