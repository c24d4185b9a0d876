//! The shared stores: one instance, the bare server and three instances, measured in turn, so that
//! other work on the machine meets all of them alike. The three are measured with the load of the
//! one each, as whoever adds instances has it, and with the load of the one shared among them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use flowgate_store::open_shared;
use futures_util::future::try_join_all;

use super::flows::{CHAIN, DIAMOND, SINGLE, Scenario};
use super::measure::Meter;
use super::raw::postgres::BarePostgres;
use super::raw::redis::BareRedis;
use super::raw::{Upkeep, Worked};
use super::server::ServerProcess;
use super::{Figure, IN_FLIGHT, Ratio, Report, Rig, Scale, gate, rolling};

/// Instances where several share the store.
const INSTANCES: usize = 3;

/// Store round trips that a step may take under load.
const ROUND_TRIPS_MAX: f64 = 1.2;

/// How much of its speed a store must keep when several instances share it.
const SHARED_SHARE_MIN: f64 = 0.9;

/// Measurements of the same, until the server has no work of its own meanwhile.
const ATTEMPTS_MAX: usize = 4;

/// How often a server is asked whether its own work is done.
const LOOK: Duration = Duration::from_millis(20);

/// A kind of shared store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Redis,
    Postgres,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Redis, Self::Postgres];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Postgres => "postgres",
        }
    }

    /// The kind that a URL names.
    pub(crate) fn of(url: &str) -> Option<Self> {
        match url.split_once("://")?.0 {
            "redis" => Some(Self::Redis),
            "postgres" | "postgresql" => Some(Self::Postgres),
            _ => None,
        }
    }

    /// The share of the bare server's speed that is promised.
    fn share_min(self) -> f64 {
        match self {
            Self::Redis => 0.35,
            Self::Postgres => 0.4,
        }
    }

    /// The parameter of the URL that keeps data sets apart.
    fn parameter(self) -> &'static str {
        match self {
            Self::Redis => "prefix",
            Self::Postgres => "schema",
        }
    }

    fn runs(self, scale: &Scale) -> usize {
        match self {
            Self::Redis => scale.redis_runs,
            Self::Postgres => scale.postgres_runs,
        }
    }
}

/// Measures the store that `url` names in a data set of its own, which is removed at the end.
pub(crate) async fn measure(
    kind: Kind,
    url: &str,
    scale: &Scale,
    report: &mut Report,
) -> anyhow::Result<()> {
    let bench = Bench::open(kind, url, scale).await?;
    let measured = bench.all(report).await;
    bench.remove().await?;
    measured
}

/// Measures one chain in the same way, once.
pub(crate) async fn turn(kind: Kind, url: &str, scale: &Scale) -> anyhow::Result<Figure> {
    let bench = Bench::open(kind, url, scale).await?;
    let measured = bench.undisturbed(&Turn::ONE).await;
    bench.remove().await?;
    measured
}

/// Waits until the server has no work of its own.
pub(crate) async fn rest(kind: Kind, url: &str, scale: &Scale) -> anyhow::Result<()> {
    let bench = Bench::open(kind, url, scale).await?;
    let rested = bench.bare.at_rest().await;
    bench.remove().await?;
    rested.map(drop)
}

/// Who is at work, and how much each of them has to do.
#[derive(Clone, Copy, Debug)]
struct Load {
    instances: usize,
    /// Runs that each instance has in flight.
    in_flight: usize,
}

impl Load {
    const ONE: Self = Self { instances: 1, in_flight: IN_FLIGHT };
    const SEVERAL: Self = Self { instances: INSTANCES, in_flight: IN_FLIGHT };
    const ONE_SHARED: Self = Self { instances: INSTANCES, in_flight: IN_FLIGHT / INSTANCES };
}

/// What is measured at a time.
#[derive(Clone, Copy)]
enum Turn {
    Flow(Load, &'static Scenario),
    /// The server by itself.
    Bare,
}

impl Turn {
    const ONE: Self = Self::Flow(Load::ONE, &CHAIN);
}

struct Bench<'a> {
    kind: Kind,
    url: String,
    server: Option<ServerProcess>,
    scale: &'a Scale,
    bare: Bare,
    data_set: String,
}

impl<'a> Bench<'a> {
    async fn open(kind: Kind, url: &str, scale: &'a Scale) -> anyhow::Result<Self> {
        let data_set = format!("flowgate_bench_{:08x}", fastrand::u32(..));
        let bare = Bare::open(kind, url, &data_set).await?;
        let separator = if url.contains('?') { '&' } else { '?' };
        let url = format!("{url}{separator}{}={data_set}", kind.parameter());
        let server = bare.process().await?;
        Ok(Self { kind, url, server, scale, bare, data_set })
    }

    async fn remove(&self) -> anyhow::Result<()> {
        self.bare.remove(&self.data_set).await.context("removing what was measured")
    }

    async fn all(&self, report: &mut Report) -> anyhow::Result<()> {
        let mut rounds = Rounds::default();
        for round in 0..self.scale.shared_rounds {
            let mut turns = rounds.turns();
            // Whatever comes later meets more data, so every second round goes back.
            if round % 2 == 1 {
                turns.reverse();
            }
            for (turn, figures) in turns {
                figures.push(self.undisturbed(&turn).await?);
            }
        }
        report.ratios.extend(rounds.ratios(self.kind));
        let named = |name: String, figures| Figure { scenario: name, ..median(figures) };
        report.results.extend([
            median(rounds.one),
            named(several_with("each"), rounds.several),
            named(several_with("in all"), rounds.one_shared),
        ]);
        report.raw.push(median(rounds.bare));
        for scenario in [&DIAMOND, &SINGLE] {
            let mut figures = Vec::new();
            for _ in 0..self.scale.shared_rounds {
                figures.push(self.undisturbed(&Turn::Flow(Load::ONE, scenario)).await?);
            }
            report.results.push(median(figures));
        }
        report.results.push(self.idle_chain().await?);
        let rigs = self.start(1).await?;
        // A listing is slow while the server knows nothing of its tables.
        self.bare.settle(&self.data_set).await?;
        // What measures the gate leaves many open runs, and so comes last.
        let at_rest = async || self.bare.at_rest().await.map(drop);
        let rolled = rolling::measure(&rigs[0], self.scale.rolling_rounds, at_rest).await;
        let gated = gate::measure(&*rigs[0].store).await;
        rigs[0].engine.shutdown().await;
        report.ratios.extend([gated?, rolled.context("measuring deployments")?]);
        Ok(())
    }

    async fn start(&self, instances: usize) -> anyhow::Result<Vec<Rig>> {
        let mut rigs = Vec::new();
        for _ in 0..instances {
            let rig = Rig::new(open_shared(&self.url).await?)?;
            rig.ready().await?;
            rigs.push(rig);
        }
        Ok(rigs)
    }

    /// Measures until the server has no work of its own meanwhile, but not for ever.
    async fn undisturbed(&self, turn: &Turn) -> anyhow::Result<Figure> {
        let mut attempts = 1;
        loop {
            let before = self.bare.at_rest().await?;
            let figure = match turn {
                Turn::Flow(load, scenario) => self.throughput(*load, scenario).await?,
                Turn::Bare => self.limit().await?,
            };
            if self.bare.upkeep().await? == before || attempts == ATTEMPTS_MAX {
                return Ok(figure);
            }
            attempts += 1;
        }
    }

    /// Instances come and go with each measurement: idle ones would take part in the next.
    async fn throughput(&self, load: Load, scenario: &Scenario) -> anyhow::Result<Figure> {
        let Load { instances, in_flight } = load;
        let rigs = self.start(instances).await?;
        let flow = Arc::new(scenario.flow());
        for rig in &rigs {
            rig.engine.register(&flow, None).await?;
        }
        let drive = |runs: usize| {
            let flow = &flow;
            try_join_all(rigs.iter().map(move |rig| rig.drive(flow, runs / instances, in_flight)))
        };
        let runs = self.kind.runs(self.scale) / instances * instances;
        drive(runs / 10).await?;
        let meter = Meter::start_with(self.server);
        let latencies: Vec<Duration> = drive(runs).await?.into_iter().flatten().collect();
        let steps = runs * flow.steps.len();
        let figure = meter.stop(self.kind.name(), scenario.name, steps, latencies);
        for rig in rigs {
            rig.engine.shutdown().await;
        }
        Ok(figure)
    }

    async fn limit(&self) -> anyhow::Result<Figure> {
        let steps = self.kind.runs(self.scale) * CHAIN.flow().steps.len();
        self.bare.steps(steps / 10).await?;
        let meter = Meter::start_with(self.server);
        let Worked { steps, latencies } = self.bare.steps(steps).await?;
        Ok(meter.stop(&format!("bare {}", self.kind.name()), CHAIN.name, steps, latencies))
    }

    async fn idle_chain(&self) -> anyhow::Result<Figure> {
        let rigs = self.start(1).await?;
        let figure = rigs[0].idle_chain(self.scale.idle_runs, self.server).await?;
        for rig in rigs {
            rig.engine.shutdown().await;
        }
        Ok(figure)
    }
}

/// What was measured in turn.
#[derive(Default)]
struct Rounds {
    one: Vec<Figure>,
    bare: Vec<Figure>,
    several: Vec<Figure>,
    one_shared: Vec<Figure>,
}

/// What several instances with so many runs `each` or `in all` are called.
fn several_with(whose: &str) -> String {
    format!("chain, {INSTANCES} instances, {IN_FLIGHT} runs {whose}")
}

impl Rounds {
    /// What a round measures, each once, and where it goes.
    fn turns(&mut self) -> [(Turn, &mut Vec<Figure>); 4] {
        [
            (Turn::ONE, &mut self.one),
            (Turn::Bare, &mut self.bare),
            (Turn::Flow(Load::SEVERAL, &CHAIN), &mut self.several),
            (Turn::Flow(Load::ONE_SHARED, &CHAIN), &mut self.one_shared),
        ]
    }

    fn ratios(&self, kind: Kind) -> [Ratio; 4] {
        let store = kind.name();
        let several = |whose, figures| {
            let name = format!("{store} {} to one", several_with(whose));
            Ratio::at_least(name, ratio(figures, &self.one), SHARED_SHARE_MIN)
        };
        let round_trips = self.one.iter().map(|one| one.round_trips_per_step);
        [
            Ratio::at_least(
                format!("{store} chain of bare {store}"),
                ratio(&self.one, &self.bare),
                kind.share_min(),
            ),
            Ratio::at_most(
                format!("{store} round trips per step"),
                middle(round_trips.map(|trips| trips.unwrap_or(f64::INFINITY)).collect()),
                ROUND_TRIPS_MAX,
            ),
            several("each", &self.several),
            several("in all", &self.one_shared),
        ]
    }
}

/// The ratio of the two in the middle round: those of one round met the same machine.
fn ratio(figures: &[Figure], to: &[Figure]) -> f64 {
    middle(figures.iter().zip(to).map(|(a, b)| a.steps_per_s / b.steps_per_s).collect())
}

pub(crate) fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A server without a store.
enum Bare {
    Redis(Box<BareRedis>),
    Postgres(BarePostgres),
}

impl Bare {
    async fn open(kind: Kind, url: &str, data_set: &str) -> anyhow::Result<Self> {
        Ok(match kind {
            Kind::Redis => Self::Redis(Box::new(BareRedis::open(url, data_set)?)),
            Kind::Postgres => Self::Postgres(BarePostgres::open(url, data_set).await?),
        })
    }

    /// The server's process, if it runs on this machine.
    async fn process(&self) -> anyhow::Result<Option<ServerProcess>> {
        Ok(match self {
            Self::Redis(redis) => ServerProcess::find(redis.pid().await?, "redis"),
            Self::Postgres(postgres) => {
                let find = |session| ServerProcess::find_parent(session, "postgres");
                postgres.with_session(find).await?
            }
        })
    }

    async fn steps(&self, steps: usize) -> anyhow::Result<Worked> {
        match self {
            Self::Redis(redis) => redis.steps(steps).await,
            Self::Postgres(postgres) => postgres.steps(steps).await,
        }
    }

    /// Waits until the server has no work of its own, and says how much it had so far.
    async fn at_rest(&self) -> anyhow::Result<Upkeep> {
        if let Self::Postgres(postgres) = self {
            postgres.checkpoint().await?;
        }
        loop {
            let upkeep = self.upkeep().await?;
            if !upkeep.is_under_way {
                return Ok(upkeep);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn upkeep(&self) -> anyhow::Result<Upkeep> {
        match self {
            Self::Redis(redis) => redis.upkeep().await,
            Self::Postgres(postgres) => postgres.upkeep().await,
        }
    }

    /// Lets the server take note of what was written.
    async fn settle(&self, data_set: &str) -> anyhow::Result<()> {
        match self {
            Self::Redis(_) => Ok(()),
            Self::Postgres(postgres) => postgres.vacuum(data_set).await,
        }
    }

    async fn remove(&self, data_set: &str) -> anyhow::Result<()> {
        match self {
            Self::Redis(redis) => redis.remove(data_set).await,
            Self::Postgres(postgres) => postgres.remove(data_set).await,
        }
    }
}

/// The figure in the middle.
pub(crate) fn median(mut figures: Vec<Figure>) -> Figure {
    figures.sort_by(|a, b| a.steps_per_s.total_cmp(&b.steps_per_s));
    figures.swap_remove(figures.len() / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speeds(speeds: &[f64]) -> Vec<Figure> {
        let figure = |speed: &f64| Meter::start().stop("redis", "chain", 1, Vec::new()).at(*speed);
        speeds.iter().map(figure).collect()
    }

    impl Figure {
        fn at(self, steps_per_s: f64) -> Self {
            Self { steps_per_s, ..self }
        }
    }

    #[test]
    fn a_ratio_is_that_of_the_middle_round_and_not_of_two_medians() {
        let (ours, bare) = (speeds(&[10.0, 50.0, 40.0]), speeds(&[20.0, 100.0, 400.0]));
        assert!((ratio(&ours, &bare) - 0.5).abs() < 1e-9);
        assert!((median(ours).steps_per_s - 40.0).abs() < 1e-9);
    }

    #[test]
    fn a_url_names_its_kind_of_store() {
        for (url, kind) in [
            ("redis://h:1", Some(Kind::Redis)),
            ("postgresql://h/d", Some(Kind::Postgres)),
            ("redis-cluster://h:1", None),
            ("sqlite:x", None),
        ] {
            assert_eq!(Kind::of(url), kind, "{url}");
        }
    }
}
