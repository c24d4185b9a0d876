//! Events as lines of JSON, as many as there are, a page at a time.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use flowgate_core::event::{Event, StoredEvent};
use flowgate_core::ids::{Position, Revision, RunId};
use flowgate_core::limits::PAGE_MAX;
use flowgate_core::time::Timestamp;
use flowgate_store::Store;
use futures_util::Stream;
use futures_util::stream::try_unfold;

use super::log::export_item;
use crate::error::ApiError;
use crate::lookup;

/// What to export.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Only this run.
    pub run_id: Option<RunId>,
    /// Only runs of this flow.
    pub flow: Option<String>,
    /// Only events since.
    pub since: Option<Timestamp>,
}

/// Where the next page begins.
#[derive(Clone, Copy, Debug)]
enum Place {
    Run { run_id: RunId, after: u64 },
    Feed { feed: u16, after: Position },
    End,
}

struct Export {
    store: Arc<dyn Store>,
    wanted: Wanted,
    place: Place,
    names: HashMap<RunId, (Arc<str>, Revision)>,
}

/// The events that are wanted, in commit order; where the store has several feeds, one after the
/// other. A run is in one of them.
pub fn export(
    store: Arc<dyn Store>,
    wanted: Wanted,
) -> impl Stream<Item = Result<Bytes, ApiError>> + Send {
    let place = match wanted.run_id {
        Some(run_id) => Place::Run { run_id, after: 0 },
        None => Place::Feed { feed: 0, after: Position::START },
    };
    let export = Export { store, wanted, place, names: HashMap::new() };
    try_unfold(export, |mut export| async move {
        Ok(export.next_lines().await?.map(|lines| (Bytes::from(lines), export)))
    })
}

impl Export {
    /// The lines of the next page that has any; none at the end.
    async fn next_lines(&mut self) -> Result<Option<Vec<u8>>, ApiError> {
        loop {
            let page = match self.place {
                Place::End => return Ok(None),
                Place::Run { run_id, after } => {
                    let page = self.store.read_events(run_id, after, PAGE_MAX).await?;
                    self.place = match page.last() {
                        Some(last) if page.len() == PAGE_MAX => {
                            Place::Run { run_id, after: last.seq }
                        }
                        Some(_) | None => Place::End,
                    };
                    page
                }
                Place::Feed { feed, .. } if feed >= self.store.feeds() => {
                    self.place = Place::End;
                    continue;
                }
                Place::Feed { feed, after } => {
                    let page = self.store.read_feed(feed, after, PAGE_MAX).await?;
                    self.place = match page.last() {
                        Some(last) if page.len() == PAGE_MAX => {
                            Place::Feed { feed, after: last.position }
                        }
                        Some(_) | None => Place::Feed { feed: feed + 1, after: Position::START },
                    };
                    page
                }
            };
            let lines = self.lines(&page).await?;
            if !lines.is_empty() {
                return Ok(Some(lines));
            }
        }
    }

    async fn lines(&mut self, page: &[StoredEvent]) -> Result<Vec<u8>, ApiError> {
        let mut lines = Vec::new();
        for stored in page {
            let (flow, revision) = self.name_of(stored).await?;
            let is_wanted = self.wanted.flow.as_deref().is_none_or(|name| *name == *flow)
                && self.wanted.since.is_none_or(|since| stored.at >= since);
            if is_wanted {
                let item = export_item(stored, flow, revision);
                serde_json::to_writer(&mut lines, &item).expect("an event has a JSON form");
                lines.push(b'\n');
            }
            if stored.event.is_terminal() {
                self.names.remove(&stored.run_id);
            }
        }
        Ok(lines)
    }

    /// The flow and revision of an event's run: its start says so, else its record does.
    async fn name_of(&mut self, stored: &StoredEvent) -> Result<(Arc<str>, Revision), ApiError> {
        if let Some(name) = self.names.get(&stored.run_id) {
            return Ok(name.clone());
        }
        let name = if let Event::RunStarted(started) = &stored.event {
            (Arc::clone(&started.flow), started.revision.clone())
        } else {
            let run = lookup::run(&*self.store, stored.run_id).await?.row.run;
            (Arc::clone(&run.flow), run.revision.clone())
        };
        self.names.insert(stored.run_id, name.clone());
        Ok(name)
    }
}
