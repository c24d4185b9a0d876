//! Steps that publish a message: as they are written ([`MqttFile`]) and as they are executed
//! ([`Publication`]).

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{KeyPath, notation};

/// The queue of steps that publish and name no other: whoever has no broker leaves it alone.
pub const QUEUE_MQTT: &str = "mqtt";

/// What the handler of steps that publish is called. No worker of a flow can have this name.
pub const MQTT_WORKER: &str = "mqtt:publish";

/// The QoS of what is published: the broker has it when it says so.
pub(super) const QOS: u8 = 1;

/// A message to publish at the broker that the settings of an instance name in `[mqtt]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "a message: a mapping such as `{topic: redforge/ingest/output}`"
)]
pub struct MqttFile {
    /// The topic, as it stands.
    pub topic: String,
    /// A path into the step's input, such as `input["ingest.done"]`: what it finds is the payload.
    /// Without it, the whole input is.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub payload: Option<String>,
    /// Whether the broker keeps the message for those who subscribe later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retain: bool,
    /// 1, which is also what it is if absent: the step succeeds once the broker has the message.
    #[serde(
        default,
        deserialize_with = "notation::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub qos: Option<u8>,
}

/// A message that a step of a valid flow publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The topic.
    pub topic: Arc<str>,
    /// Whether the broker keeps it for those who subscribe later.
    pub is_retained: bool,
    /// Where the payload is in the step's input; all of it if there is none.
    payload: Option<KeyPath>,
}

impl Publication {
    pub(super) fn compile(file: &MqttFile) -> Self {
        Self {
            topic: file.topic.as_str().into(),
            is_retained: file.retain,
            payload: file.payload.as_deref().map(KeyPath::valid),
        }
    }

    /// The payload in `input`, byte for byte; an error if there is nothing at its place.
    pub fn payload_in<'a>(&self, input: &'a str) -> Result<&'a str, String> {
        let Some(path) = &self.payload else { return Ok(input) };
        path.json_in(input).ok_or_else(|| format!("the input of the step has no `{path}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Flow;
    use crate::limits::TOPIC_BYTES_MAX;

    fn payload(path: Option<&str>, input: &str) -> Result<String, String> {
        let file = MqttFile {
            topic: "a".to_owned(),
            payload: path.map(ToOwned::to_owned),
            ..MqttFile::default()
        };
        Publication::compile(&file).payload_in(input).map(ToOwned::to_owned)
    }

    #[test]
    fn a_topic_that_no_packet_could_hold_is_refused() {
        let flow = |bytes: usize| {
            let topic = "a".repeat(bytes);
            Flow::parse(&format!(
                "{{flow: f, steps: {{a: {{run: {{mqtt: {{topic: {topic}}}}}}}}}}}"
            ))
        };
        assert!(flow(TOPIC_BYTES_MAX).is_ok());
        let told = flow(TOPIC_BYTES_MAX + 1).unwrap_err().to_string();
        assert!(
            told.contains("the topic has 65536 bytes, and MQTT takes 65535; shorten"),
            "{told}"
        );
    }

    #[test]
    fn a_payload_is_what_its_path_finds_byte_for_byte() {
        let input = r#"{"a.b": {"n": 1.50, "list": [ {"x": 1e2}, null ]}, "c": "ä\u00e4"}"#;
        let rows = [
            (None, input),
            (Some("input"), input),
            (Some("input[\"a.b\"].n"), "1.50"),
            (Some("input[\"a.b\"].list"), r#"[ {"x": 1e2}, null ]"#),
            (Some("input[\"a.b\"].list[0]"), r#"{"x": 1e2}"#),
            (Some("input[\"a.b\"].list[1]"), "null"),
            (Some("input.c"), r#""ä\u00e4""#),
        ];
        for (path, expected) in rows {
            assert_eq!(payload(path, input).as_deref(), Ok(expected), "{path:?}");
        }
        for path in ["input.d", "input.c.x", "input[0]", "input[\"a.b\"].list[2]"] {
            let told = payload(Some(path), input).unwrap_err();
            assert_eq!(told, format!("the input of the step has no `{path}`"));
        }
        assert_eq!(
            payload(Some("input.a"), "7").unwrap_err(),
            "the input of the step has no `input.a`"
        );
    }
}
