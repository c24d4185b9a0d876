//! x
use super::super::App;
use crate::failure::{Exit, Outcome};
/// a
#[derive(Debug, clap::Args)]
pub(crate) struct Start {}
/// a
#[derive(Debug, clap::Args)]
pub(crate) struct Signal {}
/// a
#[derive(Debug, clap::Args)]
pub(crate) struct Cancel {}
/// a
#[derive(Debug, clap::Args)]
pub(crate) struct Retry {}
pub(crate) async fn start(_: &App, _: Start) -> Outcome {
    Ok(Exit::Done)
}
pub(crate) async fn signal(_: &App, _: Signal) -> Outcome {
    Ok(Exit::Done)
}
pub(crate) async fn cancel(_: &App, _: Cancel) -> Outcome {
    Ok(Exit::Done)
}
pub(crate) async fn retry(_: &App, _: Retry) -> Outcome {
    Ok(Exit::Done)
}
