//! Examining a store.

use flowgate_store::StoreUrl;

use crate::wire::doctor::{Examination, FindingItem, FindingLevel};

/// Looks at a store and its settings for what may cost runs, without changing anything.
pub async fn examine(store: &StoreUrl) -> Examination {
    let findings: Vec<FindingItem> = store.examine().await.into_iter().map(Into::into).collect();
    let healthy = findings.iter().all(|finding| finding.level != FindingLevel::Bad);
    Examination { store: store.to_string(), healthy, findings }
}
