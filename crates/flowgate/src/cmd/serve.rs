//! `flowgate serve`.

use super::App;
use super::worker::start;
use crate::failure::Outcome;

/// Serves the API and the dashboard.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Serves the API and the dashboard of a store that workers share, executes no steps and fires no \
schedules. An address that other machines reach needs tokens: see `flowgate tokens new`. SIGTERM \
or Ctrl-C stops it.

Examples:
  flowgate serve --store postgres://user@db/flowgate
  flowgate serve --store redis://cache:6379 --listen 0.0.0.0:7420")]
pub(crate) struct Args {
    /// Where [default: 127.0.0.1:7420, or a free port where that is taken]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
}

pub(crate) async fn run(app: App, _args: Args) -> Outcome {
    start::serve(app).await
}
