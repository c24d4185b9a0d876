//! Deployments: from one revision of a flow to another under load, with nothing lost.
//!
//! A deployment is a durable record, [`Deployment`], and a pure state machine, [`next`]. Whichever
//! instance holds its lease looks at the world ([`Seen`]), asks what is next, and does that one
//! thing. What it does can be repeated, so another instance goes on after a crash at any point.
//!
//! ```text
//!            rolling, canary
//!          ┌────────────────┐
//! plan ────┴─► drain ──► deploy ──► verify ──► resume ──► audit ──► completed
//!   │            │         │ └───────────────►  │
//!   │            │         │          │         │
//!   └────────────┴─────────┴──────────┴─────────┴──► rolling_back ──► rolled_back
//! ```
//!
//! - **Record**: each change of it is one guarded write, of the version before ([`Deployment::version`]).
//! - **Actions**: each is applied under the guard that the record still has the version that it was
//!   decided for. So an instance that was cut off cannot switch, close or replay anything after
//!   another has gone on.
//! - **Gate**: a deployment notes the generation of the gate before it closes it. Closing only
//!   applies to an older generation, and opening sets that very generation: neither can undo the
//!   other when it comes late.
//! - **Runs** stay on their revision, except those that a checkpoint moves; the plan says which.

pub(crate) mod figures;
mod file;
pub mod machine;
pub mod plan;
mod record;
pub mod report;
mod settings;
pub mod shadow;
pub mod smoke;

pub use figures::{Delta, EndedRun, Figures};
pub use file::{
    AlertsFile, CanaryFile, DeployFile, ExpectFile, ShadowFile, SmokeTestFile, WantedFile,
};
pub use machine::{Next, Seen, next};
pub use plan::{Fate, Plan, Refusal, plan};
pub use record::{
    Counts, Deployment, DeploymentId, FORMAT, Phase, PhaseTime, Request, RollbackReason,
    SmokeMismatch, SmokeResult, Verdict,
};
pub use report::{Conservation, Report};
pub use settings::{
    Alerts, Canary, Expectation, ExpectedStatus, Ignored, IgnoredError, Migration, ReplayRate,
    Settings, ShadowRules, Share, ShareError, SmokeTest, Strategy, Wanted,
};
pub use shadow::{Shadow, ShadowPlan, ShadowResult};
