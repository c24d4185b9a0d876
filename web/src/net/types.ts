/** What the API answers, as /api/v1 has it. Whatever is here came from somewhere else: it is data. */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export type RunStatus = "held" | "running" | "waiting" | "completed" | "failed" | "cancelled";
export type StepState =
  | "pending" | "queued" | "running" | "waiting" | "succeeded" | "failed" | "skipped" | "cancelled";
export type Scope = "read" | "run" | "deploy" | "admin";

export const RUN_STATUSES: RunStatus[] = ["held", "running", "waiting", "completed", "failed", "cancelled"];

export type RunCounts = Record<RunStatus, number>;

export interface Page<T> {
  items: T[];
  next?: string | number | null;
  total?: number;
  /** Whether `total` counts all of them. */
  complete?: boolean;
}

export interface Session {
  authenticated: boolean;
  scopes: Scope[];
  login_required: boolean;
  version: string;
  store: string;
}

export interface RunItem {
  run_id: string;
  flow: string;
  revision: string;
  status: RunStatus;
  started_at: string;
  updated_at: string | null;
  ended_at: string | null;
  duration_ms: number | null;
  key: string | null;
  tags: Record<string, string>;
  retry_of: string | null;
  failure: { step: string | null; message: string | null; kind: string | null } | null;
}

export interface StepView {
  name: string;
  state: StepState;
  attempts: number;
  failures: number;
  duration_ms: number | null;
  error?: { kind: string; message: string } | null;
  result?: Json;
  started_at?: string | null;
  ended_at?: string | null;
}

export interface OpenJob {
  step: string;
  queue: string;
  attempt: number;
  due_at: string | null;
  instance: string | null;
  expires_at?: string | null;
}

export interface RunDetail extends RunItem {
  version: number;
  steps: StepView[];
  steps_complete?: boolean;
  input: Json;
  state: Record<string, Json>;
  jobs: OpenJob[];
  fate?: RunFate | null;
  events_removed: boolean;
}

export interface EventItem {
  position: string;
  run: string;
  seq: number;
  type: string;
  step: string | null;
  attempt: number | null;
  token: string | number | null;
  instance: string | null;
  flow: string;
  revision: string;
  data: Json;
  time: string;
  text?: string;
}

export interface Attempt {
  step: string;
  attempt: number | null;
  state: string;
  queued_at: string | null;
  started_at: string | null;
  ended_at: string | null;
  instance: string | null;
  error: { kind?: string; message?: string } | string | null;
}

export interface LogLine {
  number: number;
  time: string;
  step: string;
  attempt: number;
  level: string;
  text: string;
}

export interface Reason {
  step: string | null;
  cause: string;
  message: string;
  help: string | null;
  signal?: string;
  match?: Record<string, Json>;
  due_at?: string;
  queue?: string;
  [field: string]: unknown;
}

/** What somebody did about a failed run. */
export interface RunFate {
  fate: string;
  run_id?: string;
  at: string;
}

export interface Why {
  run_id: string;
  flow: string;
  status: RunStatus;
  reasons: Reason[];
  strained: { instance: string; degradation: string; strained_by: string | null }[];
  fate: RunFate | null;
}

export interface RunRef {
  run_id: string;
  flow: string;
  status: RunStatus;
  existed?: boolean;
  revision?: string;
  taken?: boolean;
  kept?: boolean;
  debounced_until?: string | null;
}

export interface BulkAnswer {
  matched?: number;
  found?: number;
  done: { run_id: string; new_run_id?: string | null }[];
  failed: { run_id: string; code: string; message: string }[];
  left: number;
}

export interface QueueItem {
  queue: string;
  paused: boolean;
  concurrency: number | null;
  rate: string | null;
  due: number | null;
  later: number | null;
  oldest_due_at: string | null;
  oldest_age_ms: number | null;
  served_by?: string[] | null;
}

export type GateState = "open" | "draining" | "holding" | "replaying";

/** The gate of a flow: whether a start begins a run, and what it holds if not. */
export interface GateItem {
  flow: string;
  state: GateState;
  generation: number;
  held: number;
  hold_max: number;
  oldest_at: string | null;
  age_ms: number | null;
  reason: string | null;
  deadline: string | null;
  replay_rate: number | null;
  deployment: string | null;
  canary: { revision: string; share: string } | null;
  pools: { revision: string; pool: string }[];
  set_at: string | null;
}

export interface TermItem {
  term: number;
  instance: string;
  began_at: string;
  expires_at: string;
  ended_at: string | null;
  end: "leads" | "released" | "expired";
}

export interface InstanceItem {
  instance: string;
  host: string;
  pid: number;
  version: string;
  role: string | null;
  pool: string | null;
  state: string;
  degradation: string;
  strained_by: string | null;
  running: number;
  slots: number;
  queues: string[] | null;
  started_at: string;
  seen_at: string;
  leads: boolean;
}

export interface WorkerItem {
  worker_id: string;
  workers: string[];
  queues: string[];
  instance: string;
  seen_at: string;
}

export interface InstanceList {
  items: InstanceItem[];
  workers: WorkerItem[];
}

export interface Minute {
  at: string;
  started: number;
  completed: number;
  failed: number;
}

export interface StuckRun {
  run_id: string;
  flow: string;
  status: RunStatus;
  started_at: string;
  age_ms: number;
  step: string | null;
  cause: string;
  message: string;
  help: string | null;
}

export interface Overview {
  now: string;
  version: string;
  store: string;
  instance: string | null;
  runs: RunCounts;
  minutes: Minute[];
  stuck: StuckRun[];
  stuck_total: number;
  failures: RunItem[];
  dead: number | null;
  queues: QueueItem[];
  leader: TermItem | null;
  instances: InstanceItem[];
  schedules: { name: string; flow: string; next_at: string | null; paused: boolean }[];
  deployments: { deployment_id: string; flow: string; phase: string; began_at: string }[];
}

export interface FlowItem {
  flow: string;
  revision: string;
  revisions: number;
  steps: number;
  description: string | null;
  folder: string | null;
  registered_at: string;
  schedules: number;
  runs: RunCounts;
}

export interface StepDef {
  name: string;
  does: string;
  action: string;
  worker: string | null;
  starts_on: { kind: "start" | "all" | "any"; events: string[] };
  emits: string[];
  queue: string | null;
  effect: boolean;
}

export interface FlowEdge {
  from: string;
  to: string;
  event: string;
}

export interface FlowDetail {
  flow: string;
  revision: string;
  active: boolean;
  folder: string | null;
  registered_at: string;
  description: string | null;
  steps: StepDef[];
  edges: FlowEdge[];
  file: Json;
  schedules: string[];
  input_schema: Json;
}

export interface RevisionItem {
  revision: string;
  active: boolean;
  registered_at: string;
  steps: number;
  description: string | null;
  folder: string | null;
  /** Those that are open alone may be counted. */
  runs: Partial<RunCounts> | null;
}

export interface ScheduleItem {
  name: string;
  flow: string;
  schedule: {
    cron?: string | null;
    every?: string | null;
    at?: string | null;
    zone?: string | null;
    [field: string]: Json | undefined;
  };
  source: string;
  paused: boolean;
  next_at: string | null;
  decided_through: string | null;
  added_at: string | null;
  last_run: string | null;
  queued: string | null;
  pending: number;
}

export interface Occurrence {
  due_at: string;
  fate: string;
  reason?: string | null;
  run_id?: string | null;
  decided_at: string;
  term?: number | null;
  asked?: string | null;
  through?: string | null;
  error?: string | null;
}

export interface ScheduleDetail extends ScheduleItem {
  next: string[];
  occurrences: Occurrence[];
}

export interface DeadItem {
  run_id: string;
  flow: string;
  step: string | null;
  kind: string | null;
  message: string | null;
  reason: string | null;
  started_at: string;
  ended_at: string;
  tags: Record<string, string>;
}

export interface DeadGroup {
  count: number;
  flow: string;
  step: string | null;
  kind: string | null;
  reason: string | null;
  example: { run_id: string; message: string | null; ended_at: string };
}

export interface SubscriberItem {
  subscriber: string;
  kind: string;
  mode: string;
  on_failure: string;
  state: string;
  caught_up: boolean;
  behind_ms: number | null;
  dead: number;
  partitions: {
    partition: number;
    active_on: string | null;
    term: number | null;
    positions: string[] | null;
    handled: number;
    written_at: string | null;
    failed: { run: string | null; seq: number | null; error: string; attempts: number; instance: string } | null;
  }[];
  members: { instance: string; partitions: number }[];
}

export interface SubscriberDetail extends SubscriberItem {
  dead_letters: {
    run: string;
    seq: number;
    type: string;
    error: string;
    attempts: number;
    put_aside_at: string;
    to_be_retried: boolean;
  }[];
}

export interface Doctor {
  store: string;
  healthy: boolean;
  findings: { check: string; level: string; found: string; remedy: string | null }[];
}

export interface LiveRuns {
  runs: { run_id: string; flow: string; status: RunStatus; type: string; at: string }[];
  missed: number;
}

export interface DeployPlan {
  from: string;
  to: string;
  finishing: number;
  resuming: number;
  pinned: number;
  /** The first of them. */
  runs: { run_id: string; at: string[]; fate: string; steps: string[]; reason: string | null }[];
  warnings: string[];
}

export interface DeploymentItem {
  deployment_id: string;
  flow: string;
  from: string;
  to: string;
  strategy: string;
  phase: string;
  phases: { phase: string; at: string }[];
  author: string | null;
  note: string | null;
  driver: string | null;
  began_at: string;
  ended_at: string | null;
  verdict: string | null;
  rollback: string | null;
  smoke: { name: string; passed: boolean; mismatches: string[] }[];
  held: number;
  released: number;
  checkpointed: number;
  plan: DeployPlan;
  /** What is left to do, while it is under way and one is looked at alone. */
  progress?: DeployProgress | null;
}

export interface DeployProgress {
  open: number;
  held: number;
  stopped: number;
  /** When what the phase waits for is over, at the latest. */
  until: string | null;
}

export interface Figures {
  count: number;
  failed: number;
  throughput_per_minute: number;
  error_rate: number;
  latency_avg_ms: number;
  latency_p50_ms: number;
  latency_p99_ms: number;
}

export interface RunList {
  count: number;
  runs: string[];
}

export interface Conservation {
  received: number;
  finished: number;
  running: number;
  held: number;
  refused: number;
  lost?: RunList;
  doubled?: RunList;
  unknown?: RunList;
}

export interface DeployReport {
  before?: Figures;
  after?: Figures;
  counts: { held: number; released: number; cancelled_held: number; checkpointed: number; pinned: number };
  conservation?: Conservation;
  smoke?: { name: string; run_id?: string; mismatches?: { path: string; wanted: string; found: string }[] }[];
  alerts?: string[];
}

export interface CheckpointItem {
  run_id: string;
  flow: string;
  deployment_id: string;
  from: string;
  steps: { step: string; stage: string; idempotency_key: string }[];
  state: string;
  created_at: string;
  expires_at: string;
}
