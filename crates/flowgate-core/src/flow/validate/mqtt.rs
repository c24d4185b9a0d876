//! Rules about messages that steps publish.

use super::Problems;
use super::limit::validate_key;
use crate::flow::mqtt::QOS;
use crate::flow::{MqttFile, Path, StepFile};
use crate::limits::TOPIC_BYTES_MAX;

const EXAMPLE: &str = "write one, such as `redforge/ingest/output`";

/// Checks the message of the step at this path.
pub(super) fn validate(at: &Path, step: &StepFile, file: &MqttFile, problems: &mut Problems) {
    let path = at.key("run").key("mqtt");
    validate_topic(&path.key("topic"), &file.topic, problems);
    if let Some(payload) = &file.payload {
        validate_key(&path.key("payload"), payload, step.subscribes.as_ref(), problems);
    }
    if let Some(qos) = file.qos
        && qos != QOS
    {
        problems.add(
            &path.key("qos"),
            format!("a step cannot publish with QoS {qos}"),
            "write `1` or leave it out: with 0 messages are lost, and what 2 is for is done by the \
             user property `message-id`, which is the same for all attempts",
        );
    }
    if !step.emits.is_empty() {
        problems.add(
            &at.key("emits"),
            "a step that publishes emits nothing: the broker answers with no data",
            "remove its `emits`, and let what follows subscribe to `step:NAME`",
        );
    }
}

fn validate_topic(path: &Path, topic: &str, problems: &mut Problems) {
    if topic.is_empty() {
        problems.add(path, "the topic is empty", EXAMPLE);
    } else if topic.len() > TOPIC_BYTES_MAX {
        problems.add(
            path,
            format!("the topic has {} bytes, and MQTT takes {TOPIC_BYTES_MAX}", topic.len()),
            "shorten it",
        );
    } else if topic.contains(['+', '#']) {
        problems.add(
            path,
            format!("`{}` holds a wildcard, and a message has one topic", topic.escape_debug()),
            "take out `+` and `#`: they are for those who subscribe",
        );
    } else if topic.chars().any(char::is_control) {
        problems.add(
            path,
            format!("`{}` holds NUL or another control character", topic.escape_debug()),
            "take it out",
        );
    } else if topic.starts_with('$') {
        problems.add(
            path,
            format!(
                "`{}` begins with `$`, as topics of the broker itself do",
                topic.escape_debug()
            ),
            EXAMPLE,
        );
    } else if topic.contains("${") {
        problems.add(
            path,
            format!("`{}` holds `${{`, and nothing is put in for it", topic.escape_debug()),
            "write the topic out, and have a step of its own for each",
        );
    }
}
