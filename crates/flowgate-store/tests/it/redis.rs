//! The suite on Redis, and what only Redis can do to a store.

mod control;
mod faults;
mod permits;
mod queues;
mod servers;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowgate_store::conformance::Harness;
use flowgate_store::{RedisOptions, RedisStore, Store};

/// A data set of its own on a server that outlives the case.
pub(crate) struct RedisHarness {
    pub(crate) redis: Arc<RedisStore>,
    url: String,
}

impl RedisHarness {
    pub(crate) async fn single() -> Self {
        Self::on(&server("FLOWGATE_TEST_REDIS"), "").await
    }

    /// Several partitions on a single server behave as they do on a cluster.
    async fn divided() -> Self {
        Self::on(&server("FLOWGATE_TEST_REDIS"), "&partitions=4").await
    }

    async fn cluster() -> Self {
        Self::on(&server("FLOWGATE_TEST_REDIS_CLUSTER"), "").await
    }

    /// Another handle of the same data set.
    async fn reopened(&self) -> RedisStore {
        open(&self.url).await
    }

    pub(crate) async fn on(server: &str, parameters: &str) -> Self {
        let url = format!("{server}?prefix=case-{}{parameters}", uuid::Uuid::now_v7().simple());
        Self { redis: Arc::new(open(&url).await), url }
    }
}

pub(crate) async fn open(url: &str) -> RedisStore {
    Box::pin(RedisStore::open(options(url))).await.expect("opening")
}

pub(crate) fn options(url: &str) -> RedisOptions {
    let mut options: RedisOptions = url.parse().expect("the URL of a Redis store");
    // The machine that runs all cases at once may be slow.
    options.call_timeout = Duration::from_secs(20);
    options
}

#[expect(clippy::disallowed_methods, reason = "a test has no configuration but its environment")]
fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} names no server; run this with \
             `cargo xtask services with cargo nextest run -p flowgate-store`"
        )
    })
}

#[async_trait]
impl Harness for RedisHarness {
    fn store(&self) -> Arc<dyn Store> {
        Arc::<RedisStore>::clone(&self.redis)
    }

    async fn advance(&self, span: Duration) {
        self.redis.advance(span).await.expect("moving the clock");
    }

    async fn reopen(&mut self) -> bool {
        self.redis = Arc::new(open(&self.url).await);
        true
    }

    fn is_shared(&self) -> bool {
        true
    }
}

flowgate_store::conformance!(on_redis, RedisHarness::single().await);
flowgate_store::conformance!(on_redis_with_partitions, RedisHarness::divided().await);
flowgate_store::conformance!(on_redis_cluster, RedisHarness::cluster().await);
