//! Whoever holds a term, found in the store's history, harmed, and followed by another.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use flowgate_core::flow::Flow;
use flowgate_engine::{Engine, EngineConfig, Workers, instance_id};
use flowgate_store::control::Term;
use flowgate_store::{Queues, Store};
use flowgate_testbed::Stopwatch;
use serde::Serialize;
use tokio::runtime::Runtime;

use super::{Args, STOP_WAIT_MAX};
use crate::cluster::Cluster;

/// How long a holder, or the next one, is waited for.
const TERM_WAIT_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);

/// What is done to whoever holds a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Harm {
    /// SIGKILL.
    Kill,
    /// SIGSTOP until another has taken over.
    Pause,
    /// Its connections are closed, and new ones as soon as they are made.
    Cut,
    /// Nothing reaches it, and it is not told.
    Silence,
    /// It is asked to end.
    Stop,
}

impl Harm {
    /// The faults in their order: each kind that is possible, in turn.
    pub(super) fn faults(args: &Args) -> Vec<Self> {
        let kinds = [Self::Kill, Self::Pause, Self::Cut, Self::Silence];
        let kinds = if args.store.takes_proxy() { &kinds[..] } else { &kinds[..2] };
        kinds.iter().copied().cycle().take(args.faults).collect()
    }
}

/// The instances that hold a term in turn.
pub(crate) struct Holders<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) store: &'a Arc<dyn Store>,
    pub(crate) runtime: &'a Runtime,
    /// The name of the term.
    pub(crate) term: &'a str,
}

impl Holders<'_> {
    /// Harms whoever holds the term, does something else, and waits for the next holder; how long
    /// it took until there was one.
    pub(crate) fn harm(
        &self,
        harm: Harm,
        meanwhile: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Duration> {
        let (place, term) = self.holder()?;
        let instance = self.cluster.instance(place);
        let proxy = || self.cluster.proxy(place).context("there is no proxy");
        let began = self.runtime.block_on(self.store.now())?;
        match harm {
            Harm::Kill => ensure!(instance.kill()?, "the instance had ended by itself"),
            Harm::Pause => instance.signal("-STOP")?,
            Harm::Cut => proxy()?.cut(),
            Harm::Silence => proxy()?.half_open(),
            Harm::Stop => instance.stop(STOP_WAIT_MAX)?,
        }
        meanwhile()?;
        let next = self.next_after(&term)?;
        let term = self.ended(&term)?;
        // It is let go while the next one works, and must do no harm.
        match harm {
            Harm::Kill | Harm::Stop => {
                self.cluster.replace(place)?;
                self.cluster.instance(place).wait_until_up()?;
            }
            Harm::Pause => instance.signal("-CONT")?,
            Harm::Cut | Harm::Silence => proxy()?.pass(),
        }
        let since = match harm {
            Harm::Stop => term.released_at.unwrap_or(began),
            Harm::Kill | Harm::Pause | Harm::Cut | Harm::Silence => began,
        };
        Ok(next.began_at.since(since))
    }

    fn last(&self) -> anyhow::Result<Option<Term>> {
        Ok(self.runtime.block_on(self.store.past_terms(self.term, 1))?.into_iter().next())
    }

    /// A term as it is after its end.
    fn ended(&self, term: &Term) -> anyhow::Result<Term> {
        let terms = self.runtime.block_on(self.store.past_terms(self.term, 100))?;
        let ended = terms.into_iter().find(|other| other.term.number == term.term.number);
        ended.context("a term is gone from the history")
    }

    /// The place of whoever holds the term, and the term.
    fn holder(&self) -> anyhow::Result<(usize, Term)> {
        let watch = Stopwatch::start();
        while watch.elapsed() < TERM_WAIT_MAX {
            let now = self.runtime.block_on(self.store.now())?;
            if let Some(term) = self.last()?.filter(|term| term.is_held(now)) {
                let holder = term.holder.rsplit_once('/').map_or("", |(name, _)| name);
                let place = (0..self.cluster.len()).find(|place| {
                    let said = self.cluster.instance(*place).said();
                    !said.is_gone && said.name.as_deref() == Some(holder)
                });
                if let Some(place) = place {
                    return Ok((place, term));
                }
            }
            std::thread::sleep(LOOK);
        }
        bail!("nobody holds the term `{}` for {TERM_WAIT_MAX:?}", self.term)
    }

    /// Waits for a later term than this one.
    fn next_after(&self, term: &Term) -> anyhow::Result<Term> {
        let watch = Stopwatch::start();
        while watch.elapsed() < TERM_WAIT_MAX {
            if let Some(next) = self.last()?
                && next.term.number > term.term.number
            {
                return Ok(next);
            }
            std::thread::sleep(LOOK);
        }
        bail!("nobody took over within {TERM_WAIT_MAX:?}")
    }
}

/// An engine that executes nothing, which the flow is registered by.
pub(super) async fn client(store: &Arc<dyn Store>, flow: &str) -> anyhow::Result<Engine> {
    let config =
        EngineConfig { queues: Queues::Only(Vec::new()), ..EngineConfig::new(instance_id()) };
    let client = Engine::start(Arc::clone(store), Workers::new(), config)?;
    let flow = Flow::parse(flow).expect("the flow is valid");
    client.register(&flow, None).await.context("registering the flow")?;
    Ok(client)
}

/// Checks that of the terms of a name none began before the one before it had ended; how many there
/// were.
pub(super) async fn judge_terms(
    store: &Arc<dyn Store>,
    name: &str,
    problems: &mut Vec<String>,
) -> anyhow::Result<usize> {
    let mut terms = store.past_terms(name, 1_000).await?;
    terms.reverse();
    for pair in terms.windows(2) {
        let end = pair[0].released_at.unwrap_or(pair[0].expires_at);
        if pair[1].term.number != pair[0].term.number + 1 || pair[1].began_at < end {
            problems.push(format!("terms overlap: {:?} {:?}", pair[0], pair[1]));
        }
    }
    Ok(terms.len())
}
