//! From a valid file to the form that the rules use.

use std::collections::HashMap;
use std::sync::Arc;

use super::input::compile_schema;
use super::{
    Action, Debounce, Flow, FlowFile, KeyPath, Needs, OnTimeout, Publication, QUEUE_DEFAULT,
    QUEUE_MQTT, RunFile, Singleton, Slot, Step, StepFile, StepLimit, Subscribes, Wait, WaitFile,
};
use crate::debounce::Window;
use crate::ids::{Revision, SlotIndex, StepIndex};
use crate::retry::RetryPolicy;
use crate::time::Timestamp;

impl Flow {
    /// Indexes `file`, which the caller has found valid.
    pub(super) fn compile(mut file: FlowFile) -> Self {
        sort_values(&mut file);
        let canonical = serde_json::to_vec(&file).expect("a flow file has a JSON form");
        let revision = Revision::of(&canonical);
        let input_schema = file.input.as_ref().map(|schema| {
            Arc::new(compile_schema(schema).expect("validation compiled this schema"))
        });
        let mut slots = Slots::default();
        let steps: Vec<Step> =
            file.steps.iter().map(|item| compile_step(&file.flow, item, &mut slots)).collect();
        let singleton = file.singleton.as_ref();
        let debounce = file.debounce.as_ref();
        let mut flow = Self {
            name: file.flow.as_str().into(),
            revision,
            entry: StepIndex(0),
            singleton: singleton.map(|file| match file.key.as_deref() {
                None => Singleton::Flow,
                Some(key) => Singleton::Value(KeyPath::valid(key)),
            }),
            debounce: debounce.map(|file| Debounce {
                path: file.key.as_deref().map(KeyPath::valid),
                window: Window { quiet: file.window.0, max: file.max.map(|max| max.0) },
            }),
            step_by_name: HashMap::new(),
            slots: slots.list,
            slot_by_name: slots.by_name,
            steps,
            input_schema,
            file,
        };
        flow.link();
        flow
    }

    /// Connects the steps with their slots.
    fn link(&mut self) {
        for at in 0..self.steps.len() {
            let index = StepIndex(u16::try_from(at).expect("validation bounds the steps"));
            let name = Arc::clone(&self.steps[at].name);
            self.steps[at].succeeded = self.slot_index(&format!("step:{name}"));
            self.steps[at].failed = self.slot_index(&format!("step.failed:{name}"));
            self.step_by_name.insert(name, index);
            match self.steps[at].needs.clone() {
                Needs::Start => self.entry = index,
                Needs::All(slots) | Needs::Any(slots) => {
                    for slot in slots {
                        self.slots[slot.at()].subscribers.push(index);
                    }
                }
            }
        }
    }
}

/// Puts the keys of JSON values in order: the same values have the same revision, whichever order
/// they were written in and whichever way `serde_json` was built.
fn sort_values(file: &mut FlowFile) {
    file.input.iter_mut().for_each(serde_json::Value::sort_all_objects);
    let inputs = file.schedules.values_mut().filter_map(|schedule| schedule.input.as_mut());
    inputs.for_each(serde_json::Value::sort_all_objects);
    for matches in file.steps.values_mut().filter_map(|step| step.wait.as_mut()?.matches.as_mut()) {
        matches.sort_keys();
        matches.values_mut().for_each(serde_json::Value::sort_all_objects);
    }
}

#[derive(Default)]
struct Slots {
    list: Vec<Slot>,
    by_name: HashMap<Arc<str>, SlotIndex>,
}

impl Slots {
    fn get(&mut self, name: &str) -> SlotIndex {
        if let Some(index) = self.by_name.get(name) {
            return *index;
        }
        let index = SlotIndex(u16::try_from(self.list.len()).expect("validation bounds the slots"));
        let name: Arc<str> = name.into();
        self.list.push(Slot { name: Arc::clone(&name), subscribers: Vec::new() });
        self.by_name.insert(name, index);
        index
    }
}

fn compile_step(flow: &str, (name, step): (&String, &StepFile), slots: &mut Slots) -> Step {
    let needs = match &step.subscribes {
        None => Needs::Start,
        Some(Subscribes::All(names)) => Needs::All(names.iter().map(|n| slots.get(n)).collect()),
        Some(Subscribes::Any(names)) => Needs::Any(names.iter().map(|n| slots.get(n)).collect()),
    };
    // A rate comes last: it is used up by whoever is granted it.
    let concurrency = step.concurrency.iter().map(|file| StepLimit::concurrency(flow, name, file));
    let rate = step.rate.iter().map(|file| StepLimit::rate(flow, name, file));
    Step {
        name: name.as_str().into(),
        needs,
        action: compile_action(step),
        emits: step.emits.iter().map(|n| slots.get(n)).collect(),
        succeeded: None,
        failed: None,
        retry: RetryPolicy::from_file(step.retry.as_ref()),
        timeout: step.timeout.map(|span| span.0),
        queue: step.queue_name().into(),
        priority: step.priority.unwrap_or(0),
        limits: concurrency.chain(rate).collect(),
        is_effect: step.effect,
    }
}

impl StepFile {
    /// The queue that the step's jobs wait in: a worker has one of its own, and so have those with
    /// a broker, so that nobody takes jobs who cannot execute them.
    pub fn queue_name(&self) -> &str {
        match (&self.queue, &self.run) {
            (Some(queue), _) => queue,
            (None, Some(RunFile::Worker(name))) => name,
            (None, Some(RunFile::Mqtt(_))) => QUEUE_MQTT,
            (None, Some(RunFile::Process(_) | RunFile::Shell(_) | RunFile::Http(_)) | None) => {
                QUEUE_DEFAULT
            }
        }
    }
}

fn compile_action(step: &StepFile) -> Action {
    match (&step.run, &step.wait) {
        (None, None) => Action::Nothing,
        (_, Some(wait)) => Action::Wait(compile_wait(wait)),
        (Some(RunFile::Process(process)), None) => Action::Process(process.clone()),
        (Some(RunFile::Shell(line)), None) => Action::Shell(line.clone()),
        (Some(RunFile::Http(http)), None) => Action::Http(http.clone()),
        (Some(RunFile::Mqtt(mqtt)), None) => Action::Mqtt(Publication::compile(mqtt)),
        (Some(RunFile::Worker(name)), None) => Action::Worker(name.as_str().into()),
    }
}

fn compile_wait(wait: &WaitFile) -> Wait {
    if let Some(delay) = wait.delay {
        return Wait::Delay(delay.0);
    }
    if let Some(until) = &wait.until {
        let at: jiff::Timestamp = until.parse().expect("validation parsed this time");
        return Wait::Until(Timestamp(at.as_millisecond()));
    }
    Wait::Signal {
        signal: wait.signal.as_deref().expect("validation wants one kind of wait").into(),
        matches: wait.matches.clone().unwrap_or_default(),
        timeout: wait.timeout.map(|span| span.0),
        on_timeout: wait.on_timeout.clone().unwrap_or(OnTimeout::Fail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(input: &str, steps: &str) -> Revision {
        Flow::parse(&format!("flow: a\ninput: {input}\nsteps: {steps}")).unwrap().revision
    }

    #[test]
    fn a_revision_depends_on_the_meaning_of_a_file_alone() {
        let steps = "{s: {}, t: {subscribes: [\"step:s\"]}}";
        let first = revision("{type: object, required: [a]}", steps);
        assert_eq!(revision("{required: [a], type: object}", steps), first);
        let long = "{s: {}, t: {subscribes: {all: [\"step:s\"]}}}";
        assert_eq!(revision("{type: object, required: [a]}", long), first);
        // Runs name a step by its place.
        let turned = "{t: {subscribes: [\"step:s\"]}, s: {}}";
        assert_ne!(revision("{type: object, required: [a]}", turned), first);
        assert_ne!(revision("{type: object}", steps), first);
    }

    #[test]
    fn a_worker_has_a_queue_of_its_own_unless_its_step_names_another() {
        let text = "flow: a
steps:
  s: {run: {worker: score}}
  t: {subscribes: ['step:s'], run: {worker: score}, queue: gpu}
  u: {subscribes: ['step:s'], run: {shell: date}}
  v: {subscribes: ['step:s'], wait: {delay: 1s}}
  w: {subscribes: ['step:s'], run: {mqtt: {topic: a}}}
  x: {subscribes: ['step:s'], run: {mqtt: {topic: a}}, queue: edge}";
        let flow = Flow::parse(text).unwrap();
        let queues: Vec<&str> = flow.steps.iter().map(|step| &*step.queue).collect();
        assert_eq!(queues, ["score", "gpu", "default", "default", "mqtt", "edge"]);
    }

    #[test]
    fn steps_and_their_subscribers_are_linked() {
        let text = include_str!("../../tests/it/valid/order.yaml");
        let flow = Flow::parse(text).unwrap();
        assert_eq!(&*flow.step(flow.entry).name, "start");
        let ship = flow.step_index("ship").unwrap();
        let done = flow.slot_index("payment.done").unwrap();
        assert_eq!(flow.slot(done).subscribers, [ship]);
        assert_eq!(flow.step(ship).succeeded, flow.slot_index("step:ship"));
        assert_eq!(flow.step(ship).failed, None);
        assert_eq!(flow.step_index("nobody"), None);
    }
}
