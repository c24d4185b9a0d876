//! The deployments, one after another, and what happens to whoever drives them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use flowgate_core::deploy::{Deployment, Phase};
use flowgate_core::flow::Flow;
use flowgate_engine::find_deployment;
use flowgate_store::Store;
use flowgate_testbed::Stopwatch;
use tokio::runtime::Runtime;

use super::flow::{self, FLOW, Quality, SETTINGS};
use crate::cluster::Cluster;
use crate::doom::Boundary;
use crate::instance::{Answer, Ask};
use crate::scenario::holder::{Harm, Holders};

/// How long a deployment may take, faults and all.
const END_MAX: Duration = Duration::from_mins(1);
/// How long an instance may take to begin a deployment.
const BEGIN_MAX: Duration = Duration::from_secs(5);
/// How often a deployment is looked at.
const LOOK: Duration = Duration::from_millis(3);
/// How long the only instance stands still in place of a connection that is cut.
const STANDSTILL: Duration = Duration::from_millis(700);

/// What happens during a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// Nothing else.
    Plain,
    /// The new revision is broken.
    Broken,
    /// Whoever drives it dies at this moment; on the way back the new revision is broken.
    Kill(Boundary),
    /// Whoever drives it is cut off from the store when it has reached this phase.
    Cut(Phase),
}

/// A deployment that has ended.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) round: Round,
    pub(super) deployment: Deployment,
    /// The phase in which it was right after the fault began, if there was one.
    pub(super) at_fault: Option<Phase>,
}

impl Round {
    /// The rounds of a seed: of eight two are broken, two have their driver killed, one has it
    /// cut off. The first three are one of each.
    pub(super) fn plan(seed: u64, count: usize) -> Vec<Self> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut kills = Boundary::all();
        random.shuffle(&mut kills);
        let mut kills = kills.into_iter().cycle();
        let mut cuts = [Phase::Drain, Phase::Verify, Phase::Resume];
        random.shuffle(&mut cuts);
        let mut cuts = cuts.into_iter().cycle();
        let mut next = |place: usize| match place % 8 {
            0 | 3 => Self::Broken,
            1 | 4 => Self::Kill(kills.next().expect("it goes round")),
            2 => Self::Cut(cuts.next().expect("it goes round")),
            _ => Self::Plain,
        };
        let mut rounds: Vec<Self> = (0..count).map(&mut next).collect();
        random.shuffle(&mut rounds);
        rounds
    }

    /// A kill at every moment, once each.
    pub(super) fn boundaries() -> Vec<Self> {
        Boundary::all().into_iter().map(Self::Kill).collect()
    }

    fn quality(self) -> Quality {
        match self {
            Self::Broken => Quality::Broken,
            Self::Kill(at) if at.is_on_the_way_back() => Quality::Broken,
            Self::Plain | Self::Kill(_) | Self::Cut(_) => Quality::Good,
        }
    }

    /// How it ends if all is well.
    pub(super) fn expected(self) -> Phase {
        match self.quality() {
            Quality::Broken => Phase::RolledBack,
            Quality::Good => Phase::Completed,
        }
    }

    /// In words.
    pub(super) fn name(self) -> String {
        match self {
            Self::Plain => "plain".to_owned(),
            Self::Broken => "broken".to_owned(),
            Self::Kill(at) => format!("kill {at}"),
            Self::Cut(phase) => format!("cut at {phase}"),
        }
    }
}

/// Whoever deploys.
pub(super) struct Deployer<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) store: &'a Arc<dyn Store>,
    pub(super) runtime: &'a Runtime,
}

impl Deployer<'_> {
    /// Makes the first revision active.
    pub(super) fn register(&self) -> anyhow::Result<()> {
        let ask = Ask::Register { flow: flow::text(0, Quality::Good) };
        match self.cluster.instance(0).ask(ask, BEGIN_MAX) {
            Some(Answer::Done { .. }) => Ok(()),
            other => bail!("the flow was not registered: {other:?}"),
        }
    }

    /// Deploys revision `number` and waits until that has ended, one way or the other.
    pub(super) fn deploy(&self, number: usize, round: Round) -> anyhow::Result<Done> {
        if let Round::Kill(at) = round {
            self.doom(Some(at))?;
        }
        let id = self.begin(&flow::text(number, round.quality()))?;
        let at_fault = match round {
            Round::Plain | Round::Broken => None,
            Round::Kill(_) => Some(self.bury(&id)?),
            Round::Cut(phase) => {
                self.wait_for(&id, |deployment| has_reached(deployment, phase))?;
                Some(self.cut(&id)?)
            }
        };
        let deployment = self.wait_for(&id, |deployment| deployment.phase.is_terminal())?;
        Ok(Done { round, deployment, at_fault })
    }

    /// Begins a deployment, through whichever instance answers; its id.
    fn begin(&self, text: &str) -> anyhow::Result<String> {
        let wanted = Flow::parse(text).expect("the flow is valid").revision;
        let mut last = None;
        for place in (0..self.cluster.len()).cycle().take(10) {
            let ask = Ask::Deploy { flow: text.to_owned(), settings: SETTINGS.to_owned() };
            last = self.cluster.instance(place).ask(ask, BEGIN_MAX);
            if let Some(Answer::Done { name }) = last {
                return Ok(name);
            }
            // Its answer may be what was lost.
            let found = self.runtime.block_on(find_deployment(&**self.store, FLOW, None))?;
            if let Some(found) = found.filter(|found| found.to == wanted) {
                return Ok(found.deployment_id.to_string());
            }
        }
        bail!("no deployment began: {last:?}")
    }

    fn read(&self, id: &str) -> anyhow::Result<Deployment> {
        let found = self.runtime.block_on(find_deployment(&**self.store, FLOW, Some(id)))?;
        found.with_context(|| format!("the deployment {id} is gone"))
    }

    fn wait_for(
        &self,
        id: &str,
        is_so: impl Fn(&Deployment) -> bool,
    ) -> anyhow::Result<Deployment> {
        let watch = Stopwatch::start();
        loop {
            let deployment = self.read(id)?;
            if is_so(&deployment) {
                return Ok(deployment);
            }
            ensure!(
                watch.elapsed() < END_MAX,
                "deployment {id} is in the phase {} after {END_MAX:?}",
                deployment.phase
            );
            std::thread::sleep(LOOK);
        }
    }

    fn harm(&self, harm: Harm, id: &str) -> anyhow::Result<Phase> {
        let Self { cluster, store, runtime } = self;
        let leaders = Holders { cluster, store, runtime, term: "leader" };
        let mut phase = None;
        leaders.harm(harm, || {
            phase = Some(self.read(id)?.phase);
            Ok(())
        })?;
        phase.context("the leader was not harmed")
    }

    /// Has whoever drives a deployment die at this moment, or nobody any more.
    fn doom(&self, at: Option<Boundary>) -> anyhow::Result<()> {
        for place in 0..self.cluster.len() {
            let instance = self.cluster.instance(place);
            let answer = instance.ask(Ask::Doom { at }, BEGIN_MAX);
            ensure!(
                answer.is_some() || instance.said().is_gone,
                "an instance was not told when to die"
            );
        }
        Ok(())
    }

    /// Waits for the death of whoever drives the deployment, and starts it again; the phase in which
    /// the deployment was left.
    fn bury(&self, id: &str) -> anyhow::Result<Phase> {
        let watch = Stopwatch::start();
        let gone = |place: &usize| self.cluster.instance(*place).said().is_gone;
        let place = loop {
            if let Some(place) = (0..self.cluster.len()).find(gone) {
                break place;
            }
            ensure!(watch.elapsed() < END_MAX, "nobody died of deployment {id}");
            std::thread::sleep(LOOK);
        };
        let phase = self.read(id)?.phase;
        // Whoever goes on is to live.
        self.doom(None)?;
        ensure!(self.cluster.instance(place).kill()?, "the instance had ended by itself");
        self.cluster.replace(place)?;
        self.cluster.instance(place).wait_until_up()?;
        Ok(phase)
    }

    /// Cuts whoever leads off from the store until another leads. An only instance, which has no
    /// connection, stands still for a while.
    fn cut(&self, id: &str) -> anyhow::Result<Phase> {
        if self.cluster.len() > 1 {
            return self.harm(Harm::Cut, id);
        }
        self.cluster.instance(0).signal("-STOP")?;
        let phase = self.read(id)?.phase;
        std::thread::sleep(STANDSTILL);
        self.cluster.instance(0).signal("-CONT")?;
        Ok(phase)
    }
}

fn has_reached(deployment: &Deployment, phase: Phase) -> bool {
    deployment.phase.is_terminal() || deployment.phases.iter().any(|entered| entered.phase == phase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rounds_follow_from_the_seed_and_hold_every_kind() {
        for (count, expected) in [(3, [0, 1, 1, 1]), (8, [3, 2, 2, 1])] {
            let rounds = Round::plan(7, count);
            assert_eq!(rounds, Round::plan(7, count));
            let of = |is: fn(&Round) -> bool| rounds.iter().filter(|round| is(round)).count();
            let found = [
                of(|round| *round == Round::Plain),
                of(|round| *round == Round::Broken),
                of(|round| matches!(round, Round::Kill(_))),
                of(|round| matches!(round, Round::Cut(_))),
            ];
            assert_eq!(found, expected, "{rounds:?}");
        }
    }
}
