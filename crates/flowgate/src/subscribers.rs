//! The subscribers that the settings ask for.

use flowgate_engine::Engine;
use flowgate_engine::subscriber::{FileSink, InstanceMode};

use crate::cmd::App;
use crate::config::sinks::Target;
use crate::failure::Failure;
use crate::instance::failure;

/// Subscribes the sinks of the settings; they go on until the engine ends.
pub(crate) async fn subscribe(app: &App, engine: &Engine) -> Result<(), Failure> {
    for sink in &app.config.sinks {
        let options = sink.options.clone();
        if engine.store().is_shared() && options.mode == InstanceMode::SingleInstance {
            app.output.warning(format_args!(
                "the subscriber `{}` ({}) is for a single instance, and others may share this \
                 store: write `mode = \"coordinated\"` if they have it too",
                sink.id, sink.origin
            ));
        }
        let subscribed = match &sink.target {
            Target::Http { sink: http, .. } => {
                engine.subscribe(&sink.id, http.clone(), options).await
            }
            Target::File(path) => engine.subscribe(&sink.id, FileSink::new(path), options).await,
        };
        drop(subscribed.map_err(|error| failure(error).path(format!("subscribers.{}", sink.id)))?);
    }
    Ok(())
}
