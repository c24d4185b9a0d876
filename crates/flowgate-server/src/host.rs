//! What the routes have at hand.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use flowgate_core::time::Timestamp;
use flowgate_core::view::Executor;
use flowgate_engine::Engine;
use flowgate_store::{RunDetail, SqliteStore, Store, StoreUrl};

use crate::api::overview;
use crate::auth::Tokens;
use crate::error::ApiError;
use crate::live::Live;
use crate::lookup;
use crate::webhooks::Webhooks;

/// The process behind the API, at whatever stage of its life it is.
#[async_trait]
pub trait Process: fmt::Debug + Send + Sync {
    /// Its engine, or why it has none.
    fn engine(&self) -> Result<Engine, String>;

    /// Its store, which may be there to read without an engine; or why it has none.
    fn store(&self) -> Result<Arc<dyn Store>, String> {
        self.engine().map(|engine| Arc::clone(engine.store()))
    }

    /// Why it should be ended and started again; empty if it should not.
    fn unhealthy(&self) -> Vec<String>;

    /// Why it should get no work; empty if it should.
    fn unready(&self) -> Vec<String>;

    /// Its metrics as Prometheus reads them, if it counts anything.
    async fn metrics(&self) -> Option<String>;
}

/// An engine whose process serves nobody but itself: nobody asks how it is.
#[async_trait]
impl Process for Engine {
    fn engine(&self) -> Result<Engine, String> {
        Ok(self.clone())
    }

    fn unhealthy(&self) -> Vec<String> {
        Vec::new()
    }

    fn unready(&self) -> Vec<String> {
        Vec::new()
    }

    async fn metrics(&self) -> Option<String> {
        None
    }
}

/// What the settings say about the API.
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    /// Who may ask. Without any, whoever reaches the listener may do everything; so a listener that
    /// other machines can reach needs some.
    pub tokens: Tokens,
    /// Names by which this host may be called; loopback names always may.
    pub allowed_hosts: Vec<String>,
    /// Whether other machines can reach a listener.
    pub is_public: bool,
    /// Whether only health, metrics and the version are served.
    pub is_off: bool,
    /// The URL of the store, for the doctor.
    pub store_url: Option<StoreUrl>,
    /// The webhooks.
    pub webhooks: Webhooks,
}

/// The state of all routes. Clones are the same.
#[derive(Clone, Debug)]
pub struct Host(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    process: Arc<dyn Process>,
    options: HostOptions,
    live: Live,
    overview: overview::Cache,
}

impl Host {
    /// The host of `process`.
    pub fn new(process: Arc<dyn Process>, options: HostOptions) -> Self {
        Self(Arc::new(Inner {
            process,
            options,
            live: Live::new(),
            overview: overview::Cache::default(),
        }))
    }

    pub(crate) fn process(&self) -> &dyn Process {
        &*self.0.process
    }

    /// The last answer of `/overview`.
    pub(crate) fn overview(&self) -> &overview::Cache {
        &self.0.overview
    }

    /// The hub that tells what happens.
    pub(crate) fn live(&self) -> &Live {
        &self.0.live
    }

    pub(crate) fn options(&self) -> &HostOptions {
        &self.0.options
    }

    /// The engine, for routes that change something; a refusal while the process has none.
    pub(crate) fn engine(&self) -> Result<Engine, ApiError> {
        self.0.process.engine().map_err(|reason| not_ready(&reason))
    }

    /// The store, for routes that only read; a refusal while the process has none.
    pub(crate) fn store(&self) -> Result<Arc<dyn Store>, ApiError> {
        self.0.process.store().map_err(|reason| not_ready(&reason))
    }

    /// Who executes the jobs of the store: whoever owns it, or whoever was heard of.
    pub(crate) async fn executor(
        &self,
        store: &dyn Store,
        detail: &RunDetail,
        now: Timestamp,
    ) -> Result<Executor, ApiError> {
        let engine = self.0.process.engine().ok();
        if store.is_shared() {
            // An instance that is silent may still work: only the end of its lease says that it
            // does not.
            let mut leases = detail.jobs.iter().filter_map(|job| job.lease.as_ref());
            let is_held = leases.any(|lease| lease.expires_at > now);
            let instances = store.list_instances().await?;
            let is_heard = instances.iter().any(|row| !lookup::is_silent(row, now));
            // This process need not be heard of to be known.
            let is_here = engine.is_some_and(|engine| !engine.config().is_client());
            let is_known = is_held || is_heard || is_here;
            return Ok(if is_known { Executor::Unknown } else { Executor::Nobody });
        }
        if let Some(engine) = engine {
            let config = engine.config();
            let owner = || Executor::Known(config.instance.to_string());
            return Ok(if config.is_client() { Executor::Nobody } else { owner() });
        }
        Ok(match &self.0.options.store_url {
            Some(StoreUrl::Sqlite(path)) => match SqliteStore::owner_of(path) {
                Ok(None) => Executor::Nobody,
                Ok(Some(owner)) => Executor::Known(owner),
                Err(_) => Executor::Unknown,
            },
            Some(StoreUrl::Memory | StoreUrl::Redis(_) | StoreUrl::Postgres(_)) | None => {
                Executor::Unknown
            }
        })
    }
}

fn not_ready(reason: &str) -> ApiError {
    ApiError::unavailable("not_ready", format!("the instance is not ready: {reason}"))
        .help("try again; `/readyz` says when it is")
}
