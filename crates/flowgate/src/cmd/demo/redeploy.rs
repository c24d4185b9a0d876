//! `flowgate demo --redeploy`: a live flow is replaced under load, and then a broken revision is
//! tried, as somebody would do it with `flowgate deploy start`. What is counted in the end comes from
//! elsewhere: from what the process that starts the orders was told, and from the file.

use std::time::Duration;

use flowgate_core::deploy::{Report, Verdict as DeployVerdict};
use flowgate_core::flow::{Flow, Span};
use flowgate_server::wire::deployments::{DeploymentItem, NewDeployment, ReportItem};

use super::child::{Child, Told};
use super::judge::{Judge, Verdict};
use super::screen::Screen;
use super::{Demo, FLOWS, broken, gone};
use crate::clock;
use crate::cmd::deploy::watch::{LOOK_EVERY, View, path_of};
use crate::failure::{Exit, Failure};
use crate::reach::Reach;
use crate::signals::Stop;

/// How the deployments are done.
const DEPLOY: &str = include_str!("deploy.yaml");
/// The step that the good revision has more than the first.
const INVOICE: &str = "
  invoice:
    description: Writes the invoice, while the customer is told
    subscribes: [shipped]
    run: { worker: demo }
";
/// How long orders come in before anything is deployed, and between two deployments.
const QUIET: Duration = Duration::from_secs(4);
/// How long orders may take to end once no more come.
const END_MAX: Duration = Duration::from_mins(1);

/// What is shown, one after the other.
struct Act {
    text: String,
    note: &'static str,
    /// How it must end.
    verdict: DeployVerdict,
}

fn acts() -> [Act; 2] {
    let first = FLOWS[0].1;
    let invoiced = format!("{first}{INVOICE}");
    // Nobody has set up a carrier for a step of this name.
    let dispatched = invoiced.replace("\n  ship:\n", "\n  dispatch:\n");
    [
        Act { text: invoiced, note: "every order gets an invoice", verdict: DeployVerdict::Good },
        Act { text: dispatched, note: "a new carrier", verdict: DeployVerdict::RolledBack },
    ]
}

/// Every revision of the flow that is deployed.
pub(super) fn revisions() -> Vec<Flow> {
    let flow = |act: &Act| Flow::parse(&act.text).expect("the flows of the demo are valid");
    acts().iter().map(flow).collect()
}

/// How a show ended.
pub(super) enum Shown {
    /// Everything was shown.
    Whole(Verdict),
    /// Somebody ended it before.
    Part,
}

/// What is heard while the show goes on.
struct Stage<'a> {
    demo: &'a Demo<'a>,
    child: &'a mut Child,
    judge: &'a mut Judge,
    stop: &'a mut Stop,
}

impl Demo<'_> {
    /// Deploys under load, twice, and counts.
    pub(super) async fn redeploy(
        &self,
        stop: &mut Stop,
        child: &mut Child,
        judge: &mut Judge,
    ) -> Result<Shown, Failure> {
        self.ready(child, judge).await?;
        let ready_at = clock::instant();
        let screen = Screen::new(self.app.output, false);
        screen.greet_redeploy(&self.folder, self.address, ready_at.duration_since(self.began))?;
        let reach = Reach::server(self.app, &format!("http://{}", self.address))?;
        let mut stage = Stage { demo: self, child, judge, stop };
        for act in acts() {
            if stage.pass(QUIET).await?.is_some() {
                return Ok(Shown::Part);
            }
            screen.deploying(act.note)?;
            let Some(deployment) = stage.deploy(&reach, &act).await? else {
                return Ok(Shown::Part);
            };
            let path = format!("{}/report", path_of(&deployment));
            let report: ReportItem = reach.get(&path, &[]).await?;
            let report: Report = serde_json::from_value(report.0).map_err(|error| {
                Failure::refused("report_unreadable", "the report is of another version")
                    .source(error)
            })?;
            screen.report(&deployment, &report)?;
            if report.verdict != Some(act.verdict) || !holds(&report) {
                return Err(broken(&[format!(
                    "the deployment ended so: {}",
                    report.status_line()
                )]));
            }
        }
        stage.child.rest().await;
        let Some(verdict) = stage.count().await? else { return Ok(Shown::Part) };
        screen.counted(&verdict)?;
        let left = self.args.span.map(|Span(span)| span.saturating_sub(ready_at.elapsed()));
        stage.pass(left.unwrap_or_default()).await?;
        Ok(Shown::Whole(verdict))
    }
}

fn holds(report: &Report) -> bool {
    report.conservation.as_ref().is_some_and(flowgate_core::deploy::Conservation::holds)
}

impl Stage<'_> {
    /// Begins a deployment and watches it to its end; nothing if somebody stopped.
    async fn deploy(
        &mut self,
        reach: &Reach,
        act: &Act,
    ) -> Result<Option<DeploymentItem>, Failure> {
        let new = NewDeployment {
            text: act.text.clone(),
            deploy: Some(DEPLOY.to_owned()),
            author: Some("the demo".to_owned()),
            note: Some(act.note.to_owned()),
            ..NewDeployment::default()
        };
        let mut deployment: DeploymentItem = reach.post("/flows/order/deployments", &new).await?;
        let path = path_of(&deployment);
        let mut view = View::new(self.demo.app.output);
        loop {
            view.show(&deployment);
            if deployment.ended_at.is_some() {
                return Ok(Some(deployment));
            }
            if self.pass(LOOK_EVERY).await?.is_some() {
                return Ok(None);
            }
            deployment = reach.get(&path, &[]).await?;
        }
    }

    /// Waits until every order has ended, and judges them; nothing if somebody stopped.
    async fn count(&mut self) -> Result<Option<Verdict>, Failure> {
        let began = clock::instant();
        while !self.judge.accepted_have_ended().await? && began.elapsed() < END_MAX {
            if self.pass(LOOK_EVERY).await?.is_some() {
                return Ok(None);
            }
        }
        self.judge.of_accepted().await.map(Some)
    }

    /// Lets time pass and notes what was started; how it ends if somebody stops it.
    async fn pass(&mut self, span: Duration) -> Result<Option<Exit>, Failure> {
        let pause = tokio::time::sleep(span);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => return Ok(None),
                exit = self.stop.next() => return Ok(Some(exit)),
                told = self.child.told() => match told {
                    Told::Started(run_id) => self.judge.note_started(run_id),
                    Told::Finished | Told::Ready => {}
                    Told::Gone(status) => return Err(gone(&status)),
                },
            }
        }
    }
}
