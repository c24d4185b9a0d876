//! A message, and what becomes of it by its own looks.

use std::sync::Arc;

use flowgate_core::limits::PAYLOAD_BYTES_MAX;
use flowgate_core::payload::{Payload, PayloadError};
use flowgate_engine::{DeadMessage, FirstBytes, StartRequest};
use rumqttc::Publish;

use crate::settings::{Subscription, TagSource};

/// What a message asks for.
#[derive(Debug)]
pub(crate) enum Wish {
    /// A run.
    Start(Box<StartRequest>, Origin),
    /// Nothing that can be done.
    Dead(Box<DeadMessage>),
}

/// Where a message comes from.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    topic: String,
    /// Its id, if it has one.
    pub(crate) message_id: Option<String>,
}

impl Origin {
    /// The message as what could not become a run.
    pub(crate) fn dead(
        self,
        subscription: &Subscription,
        payload: &[u8],
        (reason, message): (&str, String),
    ) -> DeadMessage {
        DeadMessage {
            subscription: Arc::clone(&subscription.name),
            flow: Arc::clone(&subscription.flow),
            topic: self.topic,
            message_id: self.message_id,
            reason: reason.to_owned(),
            message,
            bytes: payload.len() as u64,
            first: FirstBytes::of(payload),
        }
    }
}

/// Reads a message of a subscription. Nothing of the network's buffers is held afterwards, so one
/// huge message takes the room of one.
pub(crate) fn read(subscription: &Subscription, publish: &Publish) -> Wish {
    let properties = publish.properties.as_ref().map(|all| all.user_properties.as_slice());
    let properties = properties.unwrap_or_default();
    let named = |name: &str| {
        properties.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    };
    let id = subscription.id_property.as_deref().and_then(named).filter(|id| !id.is_empty());
    let topic = String::from_utf8_lossy(&publish.topic).into_owned();
    let origin = Origin { topic, message_id: id.map(ToOwned::to_owned) };
    let input = match input(publish) {
        Ok(input) => input,
        Err(why) => return Wish::Dead(Box::new(origin.dead(subscription, &publish.payload, why))),
    };
    let value = |source: &TagSource| match source {
        TagSource::Topic => Some(origin.topic.as_str()),
        TagSource::Level(level) => origin.topic.split('/').nth(level - 1),
        TagSource::Property(name) => named(name),
    };
    let tags = subscription.tags.iter();
    let tags = tags.filter_map(|(tag, source)| Some((Arc::clone(tag), value(source)?.into())));
    let request = StartRequest {
        key: id.map(|id| key(&subscription.name, id)),
        tags: tags.collect(),
        ..StartRequest::new(input)
    };
    Wish::Start(Box::new(request), origin)
}

/// The key of the run that a message of a subscription starts, by the message's id.
fn key(subscription: &str, id: &str) -> Arc<str> {
    format!("mqtt/{subscription}/{id}").into()
}

fn input(publish: &Publish) -> Result<Payload, (&'static str, String)> {
    if publish.retain {
        let message = "it is retained, so it says how something is, not that something happened: \
                       a broker sends it to whoever comes";
        return Err(("retained", message.to_owned()));
    }
    let bytes = publish.payload.len();
    if bytes > PAYLOAD_BYTES_MAX {
        let message = format!("its {bytes} bytes are over the limit of {PAYLOAD_BYTES_MAX}");
        return Err(("too_large", message));
    }
    let text = std::str::from_utf8(&publish.payload).map_err(|error| {
        ("not_json", format!("it is not UTF-8 at byte {}", error.valid_up_to()))
    })?;
    Payload::parse(text).map_err(|error| match error {
        PayloadError::Syntax(source) => ("not_json", format!("it is not valid JSON: {source}")),
        PayloadError::TooLarge { .. } => ("too_large", error.to_string()),
        PayloadError::TooDeep | PayloadError::Nul => ("not_json", error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rumqttc::{PublishProperties, QoS};

    use super::*;

    fn subscription() -> Subscription {
        let tag = |name: &str, source: &str| (name.into(), source.parse().unwrap());
        Subscription {
            name: "ingest".into(),
            topic: "redforge/+/input".parse().unwrap(),
            group: "flowgate".parse().unwrap(),
            flow: "order".into(),
            id_property: Some("message-id".to_owned()),
            tags: BTreeMap::from([
                tag("tab", "topic:2"),
                tag("far", "topic:9"),
                tag("source", "property:source"),
            ]),
        }
    }

    fn publish(payload: &[u8], properties: &[(&str, &str)]) -> Publish {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let user_properties = properties.iter().map(owned).collect();
        let properties = PublishProperties { user_properties, ..PublishProperties::default() };
        Publish::new("redforge/ingest/input", QoS::AtLeastOnce, payload.to_vec(), Some(properties))
    }

    #[test]
    fn a_message_becomes_a_start_with_its_key_and_tags() {
        let message = publish(br#" {"a":1} "#, &[("message-id", "7"), ("source", "till")]);
        let Wish::Start(request, origin) = read(&subscription(), &message) else {
            panic!("a start")
        };
        assert_eq!(request.input.get(), r#"{"a":1}"#);
        assert_eq!(request.key.as_deref(), Some("mqtt/ingest/7"));
        let tags: Vec<_> = request.tags.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert_eq!(tags, [("source", "till"), ("tab", "ingest")]);
        assert_eq!(origin.message_id.as_deref(), Some("7"));
        for properties in [&[("message-id", "")][..], &[("id", "7")], &[]] {
            let Wish::Start(request, _) = read(&subscription(), &publish(b"1", properties)) else {
                panic!("a start")
            };
            assert_eq!(request.key, None, "{properties:?}");
        }
    }

    #[test]
    fn what_cannot_be_an_input_is_dead_with_its_reason() {
        let large = vec![b' '; PAYLOAD_BYTES_MAX + 1];
        let deep = "[".repeat(100_000);
        let rows: [(&[u8], &str); 6] = [
            (b"{oops", "not_json"),
            (b"", "not_json"),
            (&[0xff, 0xfe], "not_json"),
            (br#""\u0000""#, "not_json"),
            (deep.as_bytes(), "not_json"),
            (&large, "too_large"),
        ];
        for (payload, reason) in rows {
            let Wish::Dead(dead) = read(&subscription(), &publish(payload, &[])) else {
                panic!("{reason}")
            };
            assert_eq!((dead.reason.as_str(), dead.bytes), (reason, payload.len() as u64));
            assert!(!dead.message.is_empty());
        }
        let retained = Publish { retain: true, ..publish(b"{}", &[]) };
        let Wish::Dead(dead) = read(&subscription(), &retained) else { panic!("retained") };
        assert_eq!(dead.reason, "retained");
    }
}
