//! `flowgate deploy-flow`: `flowgate deploy` in one line, by the names that Node-RED operators know.

use std::path::PathBuf;

use super::App;
use super::deploy::{self, New};
use crate::failure::{Failure, Outcome};

/// Replaces a live flow, in one line.
///
/// The same as `flowgate deploy` with the strategy blue-green.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The smoke tests and all other settings are those of `deploy.yaml` beside the flow file, if there \
is one.

Examples:
  flowgate deploy-flow --flow-tab order --flow-file order.yaml --drain-timeout 30 --verify
  flowgate deploy-flow --flow-tab order --flow-file order.yaml --dry-run
  flowgate deploy-flow --flow-tab order --rollback")]
pub(crate) struct Args {
    /// The flow
    #[arg(long, value_name = "FLOW")]
    flow_tab: String,
    /// The flow file of the new revision
    #[arg(long, value_name = "FILE", required_unless_present = "rollback")]
    flow_file: Option<PathBuf>,
    /// The pool whose instances execute the new revision
    #[arg(long, value_name = "POOL")]
    target: Option<String>,
    /// How long open runs may take to finish: seconds, or a span such as 2m
    #[arg(long, value_name = "SPAN")]
    drain_timeout: Option<String>,
    /// Refuse to go on without smoke tests
    #[arg(long)]
    verify: bool,
    /// Say what would happen to each open run, and change nothing
    #[arg(long, conflicts_with = "rollback")]
    dry_run: bool,
    /// Go back to the revision that was active before
    #[arg(long)]
    rollback: bool,
}

pub(crate) async fn run(app: App, args: Args) -> Outcome {
    let Some(file) = args.flow_file.filter(|_| !args.rollback) else {
        return deploy::roll_back(&app, &args.flow_tab, None, true).await;
    };
    let beside = file.with_file_name("deploy.yaml");
    let config = beside.is_file().then_some(beside);
    if args.verify && config.is_none() {
        let message = "there is nothing to verify the new revision with";
        return Err(Failure::usage("usage", message)
            .help("write smoke tests into `deploy.yaml` beside the flow file"));
    }
    let is_seconds = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let drain_timeout =
        args.drain_timeout.map(|text| if is_seconds(&text) { format!("{text}s") } else { text });
    let new = New {
        file,
        deploy: config,
        strategy: Some("blue-green".to_owned()),
        drain_timeout,
        pool: args.target,
        shadow: None,
        flow: Some(args.flow_tab),
        author: None,
        note: None,
        force: false,
    };
    if args.dry_run { deploy::plan(&app, new).await } else { deploy::start(&app, new, true).await }
}
