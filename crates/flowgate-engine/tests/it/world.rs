//! What the tests share: a store, engines on it, and what must hold of every run afterwards.

use std::sync::Arc;
use std::time::Duration;

use flowgate_core::check;
use flowgate_core::event::Event;
use flowgate_core::flow::Flow;
use flowgate_core::ids::{InstanceId, RunId};
use flowgate_core::payload::Payload;
use flowgate_core::run::RunStatus;
use flowgate_core::time::Timestamp;
use flowgate_engine::{Engine, EngineConfig, EngineError, Renewals, StartRequest, Workers};
use flowgate_store::{Clock, MemoryStore, RunDetail, Store};
use serde::Serialize;

/// A point in time for stores that follow tokio's clock.
pub(crate) const EPOCH: Timestamp = Timestamp(1_700_000_000_000);

/// One flow, and engines on one store.
pub(crate) struct World {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) flow: Flow,
    pub(crate) engines: Vec<Engine>,
}

/// A store whose time is tokio's.
pub(crate) fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::with_clock(Clock::tokio(EPOCH)))
}

pub(crate) fn config(name: &str) -> EngineConfig {
    EngineConfig { renewals: Renewals::OnRuntime, ..EngineConfig::new(InstanceId(name.into())) }
}

pub(crate) fn payload(value: impl Serialize) -> Payload {
    Payload::of(&value).unwrap()
}

impl World {
    /// One engine on a store whose time is tokio's.
    pub(crate) async fn new(yaml: &str, workers: Workers) -> Self {
        Self::with(store(), yaml, vec![(workers, config("a"))]).await
    }

    pub(crate) async fn with(
        store: Arc<dyn Store>,
        yaml: &str,
        engines: Vec<(Workers, EngineConfig)>,
    ) -> Self {
        let flow = Flow::parse(yaml).unwrap();
        let start = |(workers, config)| Engine::start(Arc::clone(&store), workers, config).unwrap();
        let engines: Vec<Engine> = engines.into_iter().map(start).collect();
        // A store that fails now and then may do so here.
        while let Err(error) = engines[0].register(&flow, None).await {
            let is_transient = matches!(&error, EngineError::Store(error) if error.is_transient());
            assert!(is_transient, "{error:?}");
        }
        Self { store, flow, engines }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engines[0]
    }

    pub(crate) async fn start(&self, input: impl Serialize) -> RunId {
        let request = StartRequest::new(payload(input));
        self.engine().start_run(&self.flow, request).await.unwrap().run_id
    }

    /// Starts a run and waits for its end; the checked run.
    pub(crate) async fn run(&self, input: impl Serialize) -> RunDetail {
        let run_id = self.start(input).await;
        self.ended(run_id).await
    }

    /// Waits for the end of a run, and checks its log.
    pub(crate) async fn ended(&self, run_id: RunId) -> RunDetail {
        let detail = self.engine().wait(run_id).await.unwrap();
        let log = self.store.read_events(run_id, 0, 100_000).await.unwrap();
        let violations = check::check_run(&[&self.flow], run_id, &log, Some(&detail.row.run));
        assert!(violations.is_empty(), "{violations:#?}\n{:#?}", self.events(run_id).await);
        assert!(check::check_ended(run_id, &log).is_none());
        detail
    }

    pub(crate) async fn events(&self, run_id: RunId) -> Vec<Event> {
        let log = self.store.read_events(run_id, 0, 100_000).await.unwrap();
        log.into_iter().map(|stored| stored.event).collect()
    }

    /// The types of a run's events, with their steps.
    pub(crate) async fn story(&self, run_id: RunId) -> Vec<String> {
        let tell = |event: Event| match event.step() {
            Some(step) => format!("{} {step}", event.kind()),
            None => event.kind().to_owned(),
        };
        self.events(run_id).await.into_iter().map(tell).collect()
    }

    /// What a step returned.
    pub(crate) async fn result(&self, run_id: RunId, name: &str) -> serde_json::Value {
        let result = self.events(run_id).await.into_iter().find_map(|event| {
            let Event::StepSucceeded { step, result, .. } = event else { return None };
            if *step == *name { result } else { None }
        });
        result.unwrap_or_else(Payload::null).value()
    }

    /// The message and kind of a step's last failure.
    pub(crate) async fn failure(&self, run_id: RunId) -> (String, String) {
        let error = self.events(run_id).await.into_iter().rev().find_map(|event| {
            if let Event::StepFailed { error, .. } | Event::AttemptFailed { error, .. } = event {
                return Some(error);
            }
            None
        });
        let error = error.expect("an attempt failed");
        (format!("{:?}", error.kind), error.message.to_string())
    }

    pub(crate) async fn shutdown(self) {
        for engine in &self.engines {
            engine.shutdown().await;
        }
    }
}

/// Waits until `holds`, a little time at a time, and at most a minute.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let mut pause = tokio::time::interval(Duration::from_millis(5));
    for _ in 0..12_000 {
        if holds().await {
            return;
        }
        pause.tick().await;
    }
    panic!("{what}: not within a minute");
}

pub(crate) fn is(detail: &RunDetail, status: RunStatus) {
    assert_eq!(detail.row.run.status, status, "{:#?}", detail.row.run);
}
