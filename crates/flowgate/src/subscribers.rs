//! The subscribers that the settings ask for, and what comes from and goes to their broker.

use flowgate_engine::subscriber::{FileSink, InstanceMode};
use flowgate_engine::{Engine, Workers};
use flowgate_mqtt::{Bridge, BridgeError, Outlet};

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

/// Listens to the broker of the settings, if they name one, until the bridge is stopped.
pub(crate) fn listen(app: &App, engine: &Engine) -> Result<Option<Bridge>, Failure> {
    let Some(mqtt) = &app.config.mqtt else { return Ok(None) };
    Bridge::start(engine, &mqtt.resolve()?).map(Some).map_err(unreachable_broker)
}

/// Has steps publish at the broker of the settings, if they name one, until it is stopped.
pub(crate) fn publish(app: &App, workers: &mut Workers) -> Result<Option<Outlet>, Failure> {
    let Some(mqtt) = &app.config.mqtt else { return Ok(None) };
    let outlet = Outlet::start(&mqtt.resolve()?).map_err(unreachable_broker)?;
    workers.publish_by(outlet.publisher());
    Ok(Some(outlet))
}

fn unreachable_broker(error: BridgeError) -> Failure {
    Failure::usage("config_invalid", "no broker can be reached").source(error).path("mqtt")
}
