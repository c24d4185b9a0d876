//! What can be asked about flows, for whoever has an engine or a store at hand.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use flowgate_core::flow::{Action, Flow, Needs, Step, Wait, diff, graph as drawings};
use flowgate_core::ids::{Revision, SlotIndex};
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_core::view::Brief;
use flowgate_engine::{Engine, NamedSchedule, read_schedules};
use flowgate_store::{Authored, RunQuery, Store, StoreError, StoredRevision};

use crate::error::ApiError;
use crate::lookup;
use crate::problem;
use crate::wire::Items;
use crate::wire::flows::{
    ActionKind, EdgeItem, FlowDetail, FlowDiff, FlowGraph, FlowItem, FlowProblem, GraphFormat,
    NewFlow, OpenCounts, Registered, RevisionItem, RunCounts, StartKind, StartsOn, StepItem,
    Validation,
};

/// Flows whose runs are counted in one list; each costs a read for every status.
const COUNTED_MAX: usize = 200;
/// Edges of a flow that are told; nobody could follow more.
const EDGES_MAX: usize = 5_000;
/// Schedules that are looked through for those of a flow.
const SCHEDULES_MAX: usize = 10_000;

/// All flows, by name.
pub async fn list(store: &dyn Store) -> Result<Items<FlowItem>, ApiError> {
    let all = store.list_revisions(None).await?;
    let mut revisions: HashMap<&str, usize> = HashMap::new();
    for stored in &all {
        *revisions.entry(&stored.revision.file.flow).or_default() += 1;
    }
    let mut active: Vec<&StoredRevision> = all.iter().filter(|stored| stored.active).collect();
    active.sort_by(|a, b| a.revision.file.flow.cmp(&b.revision.file.flow));
    let mut schedules: BTreeMap<String, usize> = BTreeMap::new();
    for named in read_schedules(store, None, SCHEDULES_MAX).await? {
        *schedules.entry(named.record.spec.flow).or_default() += 1;
    }
    let is_counted = active.len() <= COUNTED_MAX;
    let mut items = Vec::new();
    for stored in active {
        let file = &stored.revision.file;
        let runs = if is_counted { Some(counts(store, Some(&file.flow)).await?) } else { None };
        items.push(FlowItem {
            flow: file.flow.clone(),
            revision: stored.revision.revision.to_string(),
            revisions: revisions.get(file.flow.as_str()).copied().unwrap_or_default(),
            steps: file.steps.len(),
            description: file.description.clone(),
            folder: stored.revision.folder.clone(),
            registered_at: stored.registered_at.to_string(),
            author: text(stored.revision.authored.author.as_deref()),
            note: text(stored.revision.authored.note.as_deref()),
            schedules: schedules.get(&file.flow).copied().unwrap_or_default(),
            runs,
        });
    }
    Ok(Items { items })
}

/// How many runs of a flow, or of all flows, are in each status.
pub async fn counts(store: &dyn Store, flow: Option<&str>) -> Result<RunCounts, StoreError> {
    let count = async |status| {
        let flow = lookup::flow_name(flow);
        store.count_runs(&RunQuery { flow, statuses: vec![status], ..RunQuery::default() }).await
    };
    Ok(RunCounts {
        held: count(RunStatus::Held).await?,
        running: count(RunStatus::Running).await?,
        waiting: count(RunStatus::Waiting).await?,
        completed: count(RunStatus::Completed).await?,
        failed: count(RunStatus::Failed).await?,
        cancelled: count(RunStatus::Cancelled).await?,
    })
}

/// The stored revision that `flow` and `revision` name; the active one without a revision.
pub async fn find(
    store: &dyn Store,
    flow: &str,
    revision: Option<&str>,
) -> Result<StoredRevision, ApiError> {
    match revision {
        // A name with the sign that begins a revision is the name of no flow.
        _ if flow.contains('@') => Err(lookup::no_flow(store, flow).await?),
        None => lookup::revision(store, flow).await,
        Some(revision) => lookup::revision(store, &format!("{flow}@{revision}")).await,
    }
}

/// A revision in full.
pub async fn show(
    store: &dyn Store,
    flow: &str,
    revision: Option<&str>,
) -> Result<FlowDetail, ApiError> {
    let stored = find(store, flow, revision).await?;
    let known = read_schedules(store, None, SCHEDULES_MAX).await?;
    let is_of_flow = |named: &&NamedSchedule| named.record.spec.flow == stored.revision.file.flow;
    let schedules = known.iter().filter(is_of_flow).map(|named| named.name.to_string()).collect();
    let facts = Stored {
        active: stored.active,
        registered_at: stored.registered_at,
        folder: stored.revision.folder.clone(),
        authored: stored.revision.authored.clone(),
    };
    let flow = lookup::compile(stored)?;
    let detail = detail(&flow);
    Ok(FlowDetail {
        active: Some(facts.active),
        registered_at: Some(facts.registered_at.to_string()),
        folder: facts.folder,
        author: text(facts.authored.author.as_deref()),
        note: text(facts.authored.note.as_deref()),
        schedules,
        ..detail
    })
}

/// What a store knows of a revision besides its file.
struct Stored {
    active: bool,
    registered_at: Timestamp,
    folder: Option<String>,
    authored: Authored,
}

fn text(text: Option<&str>) -> Option<String> {
    text.map(ToOwned::to_owned)
}

/// A flow in full, as far as it says itself.
pub fn detail(flow: &Flow) -> FlowDetail {
    let names = flow.file.schedules.keys();
    FlowDetail {
        flow: flow.name.to_string(),
        revision: flow.revision.to_string(),
        active: None,
        folder: None,
        registered_at: None,
        author: None,
        note: None,
        description: flow.file.description.clone(),
        steps: flow.steps.iter().map(|step| step_item(flow, step)).collect(),
        edges: edges(flow),
        file: Box::new(flow.file.clone()),
        schedules: names.map(|name| format!("{}/{name}", flow.name)).collect(),
        input_schema: flow.file.input.clone(),
    }
}

fn step_item(flow: &Flow, step: &Step) -> StepItem {
    let names = |slots: &[SlotIndex]| -> Vec<String> {
        slots.iter().map(|slot| flow.slot(*slot).name.to_string()).collect()
    };
    let starts_on = match &step.needs {
        Needs::Start => StartsOn { kind: StartKind::Start, events: Vec::new() },
        Needs::All(slots) => StartsOn { kind: StartKind::All, events: names(slots) },
        Needs::Any(slots) => StartsOn { kind: StartKind::Any, events: names(slots) },
    };
    let (action, worker) = match &step.action {
        Action::Nothing => (ActionKind::Nothing, None),
        Action::Process(_) => (ActionKind::Process, None),
        Action::Shell(_) => (ActionKind::Shell, None),
        Action::Http(_) => (ActionKind::Http, None),
        Action::Mqtt(_) => (ActionKind::Mqtt, None),
        Action::Worker(name) => (ActionKind::Worker, Some(name.to_string())),
        Action::Wait(_) => (ActionKind::Wait, None),
    };
    StepItem {
        name: step.name.to_string(),
        does: does(&step.action),
        action,
        worker,
        starts_on,
        emits: names(&step.emits),
        queue: step.queue.to_string(),
        effect: step.is_effect,
    }
}

/// What a step does, for people.
fn does(action: &Action) -> String {
    match action {
        Action::Nothing => "completes at once".to_owned(),
        Action::Process(process) => format!("runs {}", process.command.join(" ")),
        Action::Shell(line) => format!("runs sh -c {}", line.trim()),
        Action::Http(http) => format!("posts to {}", http.url),
        Action::Mqtt(publication) => format!("publishes to {}", publication.topic),
        Action::Worker(name) => format!("calls the worker {name}"),
        Action::Wait(Wait::Delay(delay)) => format!("waits {}", Brief(*delay)),
        Action::Wait(Wait::Until(at)) => format!("waits until {at}"),
        Action::Wait(Wait::Signal { signal, .. }) => format!("waits for the signal {signal}"),
    }
}

/// All that leads from step to step.
fn edges(flow: &Flow) -> Vec<EdgeItem> {
    let mut edges = Vec::new();
    for step in &flow.steps {
        for slot in step.emits.iter().copied().chain(step.succeeded).chain(step.failed) {
            let slot = flow.slot(slot);
            edges.extend(slot.subscribers.iter().map(|to| EdgeItem {
                from: step.name.to_string(),
                to: flow.step(*to).name.to_string(),
                event: slot.name.to_string(),
            }));
        }
    }
    edges.truncate(EDGES_MAX);
    edges
}

/// The revisions of a flow, the latest registered first.
pub async fn revisions(store: &dyn Store, flow: &str) -> Result<Items<RevisionItem>, ApiError> {
    let stored = store.list_revisions(Some(flow)).await?;
    if stored.is_empty() {
        return Err(lookup::no_flow(store, flow).await?);
    }
    let open = open_runs(store, flow).await?;
    let item = |stored: StoredRevision| RevisionItem {
        runs: open
            .as_ref()
            .map(|open| open.get(&stored.revision.revision).copied().unwrap_or_default()),
        revision: stored.revision.revision.to_string(),
        active: stored.active,
        registered_at: stored.registered_at.to_string(),
        author: text(stored.revision.authored.author.as_deref()),
        note: text(stored.revision.authored.note.as_deref()),
        steps: stored.revision.file.steps.len(),
        description: stored.revision.file.description,
        folder: stored.revision.folder,
    };
    Ok(Items { items: stored.into_iter().map(item).collect() })
}

/// The open runs of a flow by revision; none if there are more than one page of them.
async fn open_runs(
    store: &dyn Store,
    flow: &str,
) -> Result<Option<HashMap<Revision, OpenCounts>>, StoreError> {
    let query = RunQuery {
        flow: lookup::flow_name(Some(flow)),
        statuses: RunStatus::OPEN.to_vec(),
        limit: PAGE_MAX,
        ..RunQuery::default()
    };
    let rows = store.list_runs(&query).await?;
    if rows.len() == PAGE_MAX {
        return Ok(None);
    }
    let mut counts: HashMap<Revision, OpenCounts> = HashMap::new();
    for row in rows {
        let count = counts.entry(row.run.revision.clone()).or_default();
        match row.run.status {
            RunStatus::Waiting => count.waiting += 1,
            RunStatus::Held => count.held += 1,
            RunStatus::Running
            | RunStatus::Completed
            | RunStatus::Failed
            | RunStatus::Cancelled => count.running += 1,
        }
    }
    Ok(Some(counts))
}

/// A drawing of a revision.
pub async fn graph(
    store: &dyn Store,
    flow: &str,
    revision: Option<&str>,
    format: GraphFormat,
) -> Result<FlowGraph, ApiError> {
    let flow = lookup::compile(find(store, flow, revision).await?)?;
    Ok(draw(&flow, format))
}

/// A drawing of a flow.
pub fn draw(flow: &Flow, format: GraphFormat) -> FlowGraph {
    let graph = match format {
        GraphFormat::Text => drawings::text(flow),
        GraphFormat::Mermaid => drawings::mermaid(flow),
        GraphFormat::Dot => drawings::dot(flow),
        GraphFormat::Svg => drawings::svg(flow),
    };
    let (flow, revision) = (flow.name.to_string(), flow.revision.to_string());
    FlowGraph { flow, revision, format, graph }
}

/// What is different between two revisions of a flow.
pub async fn changes(
    store: &dyn Store,
    flow: &str,
    (old, new): (&str, &str),
) -> Result<FlowDiff, ApiError> {
    let old = find(store, flow, Some(old)).await?;
    let new = find(store, flow, Some(new)).await?;
    Ok(FlowDiff::new(&diff(&old.revision.file, &new.revision.file)))
}

/// Whether a text is a valid flow file.
pub fn validate(text: &str) -> Validation {
    match Flow::parse(text) {
        Ok(flow) => Validation {
            valid: true,
            flow: Some(flow.name.to_string()),
            revision: Some(flow.revision.to_string()),
            steps: Some(flow.steps.len()),
            errors: Vec::new(),
        },
        Err(errors) => Validation { errors: FlowProblem::of(&errors), ..Validation::default() },
    }
}

/// Keeps a revision; new runs start on it.
pub async fn register(
    engine: &Engine,
    NewFlow { text, author, note }: NewFlow,
) -> Result<Registered, ApiError> {
    let flow = Flow::parse(&text).map_err(|errors| {
        let first = errors.as_slice().first().expect("there is at least one");
        let more = errors.as_slice().len() - 1;
        let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        let (line, column, wrong) = (first.line, first.column, &first.problem);
        let code = problem::code(&wrong.path.to_string(), &wrong.message);
        let message = format!("{line}:{column}: {}{more}", wrong.message);
        ApiError::invalid(code.unwrap_or("flow_invalid"), message)
            .path(wrong.path.to_string())
            .help(wrong.remedy.clone())
    })?;
    let store = &**engine.store();
    let known = store.list_revisions(Some(&flow.name)).await?;
    let known = known.into_iter().find(|stored| stored.revision.revision == flow.revision);
    let existed = known.is_some();
    // A revision that came with a folder keeps it: its programs start there.
    let folder = known.and_then(|stored| stored.revision.folder);
    if let Some(refusal) = engine.config().process.refuses(&flow, folder.is_some()) {
        return Err(forbidden(&refusal));
    }
    let authored = Authored { author: author.map(Into::into), note: note.map(Into::into) };
    engine.register_by(&flow, folder.map(Into::into), authored).await?;
    let (name, revision): (Arc<str>, Revision) = (flow.name, flow.revision);
    Ok(Registered { flow: name.to_string(), revision: revision.to_string(), existed })
}

/// Why a flow may not start programs here; the refusal holds its code.
pub(crate) fn forbidden(refusal: &str) -> ApiError {
    let codes = ["process_forbidden", "program_forbidden"];
    let code = codes.into_iter().find(|code| refusal.contains(code));
    let code = code.unwrap_or("process_forbidden");
    ApiError::invalid(code, refusal.replace(&format!("{code}: "), "")).path("text")
}
