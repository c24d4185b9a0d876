//! `flowgate dev`.
use super::App;
use crate::failure::{Exit, Outcome};
/// a
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    pub(crate) concurrency: Option<usize>,
}
pub(crate) async fn run(_app: App, _args: Args) -> Outcome {
    Ok(Exit::Done)
}
