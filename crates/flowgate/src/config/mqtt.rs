//! The broker of MQTT in the settings file: `[mqtt]` and `[mqtt.subscriptions.NAME]`.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::flow::Span;
use flowgate_core::ids::is_identifier;
use flowgate_mqtt::{
    Broker, ClientId, Credentials, GROUP_DEFAULT, Group, ID_PROPERTY_DEFAULT, IN_FLIGHT_DEFAULT,
    SESSION_EXPIRY_DEFAULT, Settings, SettingsError, Subscription, TagSource, TopicFilter,
    check_tags,
};
use serde::Deserialize;
use toml::Spanned;

use super::Origin;
use crate::failure::Failure;

const HELP: &str = "see docs/guide/mqtt.md for the settings of MQTT";

/// The broker that the settings ask for.
#[derive(Clone, Debug)]
pub(crate) struct Mqtt {
    url: Text<Broker>,
    client_id: Text<ClientId>,
    user: Option<Text<String>>,
    /// The variable with the password.
    password: Option<String>,
    session_expiry: Duration,
    in_flight_max: NonZeroU16,
    pub(crate) subscriptions: Vec<(Subscription, Origin)>,
    origin: Origin,
}

/// A value that stands in the file, or in a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Text<T> {
    Said(T),
    Variable(String),
}

/// The part of the file that is about MQTT.
#[derive(Deserialize)]
struct File {
    mqtt: Option<Spanned<MqttFile>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MqttFile {
    url: Spanned<String>,
    client_id: Spanned<String>,
    user: Option<Spanned<String>>,
    password: Option<Spanned<String>>,
    session_expiry: Option<Span>,
    in_flight: Option<NonZeroU16>,
    #[serde(default)]
    subscriptions: BTreeMap<Spanned<String>, SubscriptionFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubscriptionFile {
    topic: Spanned<String>,
    flow: Spanned<String>,
    group: Option<Spanned<String>>,
    qos: Option<Spanned<u8>>,
    id_property: Option<String>,
    #[serde(default)]
    tags: BTreeMap<Arc<str>, Spanned<String>>,
}

/// What is wrong, what to write instead, and where.
type Fault = (SettingsError, Range<usize>);

fn fault<T>(message: impl Into<String>, help: &'static str, at: Range<usize>) -> Result<T, Fault> {
    Err((SettingsError { message: message.into(), help }, at))
}

fn parse_at<T: FromStr<Err = SettingsError>>(text: &Spanned<String>) -> Result<T, Fault> {
    text.get_ref().parse().map_err(|error| (error, text.span()))
}

fn text_at<T: FromStr<Err = SettingsError>>(text: &Spanned<String>) -> Result<Text<T>, Fault> {
    match text.get_ref().strip_prefix("env:") {
        Some(name) => Ok(Text::Variable(name.to_owned())),
        None => parse_at(text).map(Text::Said),
    }
}

/// The broker that `text`, the file called `name`, asks for.
pub(super) fn parse(name: &str, text: &str) -> Result<Option<Mqtt>, Failure> {
    let line = |at: &Range<usize>| super::file::line_at(text, at.start);
    let wrong = |line: usize, message: &str, help: &str| {
        let message = format!("{name}:{line}: {message}");
        Failure::usage("config_invalid", message).help(help).path(name)
    };
    let file: File = toml::from_str(text)
        .map_err(|error| wrong(error.span().map_or(1, |at| line(&at)), error.message(), HELP))?;
    let Some(file) = file.mqtt else { return Ok(None) };
    let origin = |at: &Range<usize>| Origin::File { path: name.to_owned(), line: line(at) };
    let mqtt = read(file, origin);
    mqtt.map(Some)
        .map_err(|(error, at)| wrong(line(&at), &format!("mqtt: {}", error.message), error.help))
}

fn read(file: Spanned<MqttFile>, origin: impl Fn(&Range<usize>) -> Origin) -> Result<Mqtt, Fault> {
    let at = file.span();
    let file = file.into_inner();
    let password = file.password.as_ref().map(|text| {
        let help = "write `env:VARIABLE`; the file is no place for a password itself";
        let name = text.get_ref().strip_prefix("env:").map(ToOwned::to_owned);
        name.map_or_else(|| fault("`password` names no variable", help, text.span()), Ok)
    });
    let password = password.transpose()?;
    let user = file.user.as_ref().map(|user| match user.get_ref().strip_prefix("env:") {
        Some(name) => Text::Variable(name.to_owned()),
        None => Text::Said(user.get_ref().clone()),
    });
    if user.is_some() != password.is_some() {
        return fault("there is a user or a password without the other", "write both, or none", at);
    }
    let session_expiry = file.session_expiry.map_or(SESSION_EXPIRY_DEFAULT, |span| span.0);
    if session_expiry.is_zero() {
        let help = "write a time that is longer than an instance is ever away, such as `7d`";
        return fault("`session_expiry` of 0 keeps no session", help, at);
    }
    let subscriptions = file.subscriptions.into_iter().map(|(name, file)| {
        let origin = origin(&name.span());
        Ok((subscription(&name, file)?, origin))
    });
    Ok(Mqtt {
        url: text_at(&file.url)?,
        client_id: text_at(&file.client_id)?,
        user,
        password,
        session_expiry,
        in_flight_max: file.in_flight.unwrap_or(IN_FLIGHT_DEFAULT),
        subscriptions: subscriptions.collect::<Result<_, _>>()?,
        origin: origin(&at),
    })
}

fn subscription(name: &Spanned<String>, file: SubscriptionFile) -> Result<Subscription, Fault> {
    let is_name = |text: &Spanned<String>| is_identifier(text.get_ref());
    let help = "write letters, digits, `.`, `_` and `-`";
    if !is_name(name) {
        return fault(format!("no subscription is called `{name:?}`"), help, name.span());
    }
    if !is_name(&file.flow) {
        let message = format!("`{}` is not the name of a flow", file.flow.get_ref());
        return fault(message, help, file.flow.span());
    }
    if let Some(qos) = &file.qos
        && *qos.get_ref() != 1
    {
        let help = "write 1 or leave it out: with 0 messages are lost, and what 2 is for is done \
                    by the message id";
        return fault(format!("there is no QoS {} here", qos.get_ref()), help, qos.span());
    }
    let group = file.group.as_ref().map_or_else(
        || Ok(GROUP_DEFAULT.parse().expect("the default is a name")),
        parse_at::<Group>,
    )?;
    let tags = file.tags.iter();
    let tags = tags.map(|(tag, source)| Ok((Arc::clone(tag), parse_at::<TagSource>(source)?)));
    let tags = tags.collect::<Result<BTreeMap<_, _>, Fault>>()?;
    check_tags(&tags).map_err(|error| (error, name.span()))?;
    let id_property = file.id_property.unwrap_or_else(|| ID_PROPERTY_DEFAULT.to_owned());
    Ok(Subscription {
        name: name.get_ref().as_str().into(),
        topic: parse_at::<TopicFilter>(&file.topic)?,
        group,
        flow: file.flow.get_ref().as_str().into(),
        id_property: Some(id_property).filter(|property| !property.is_empty()),
        tags,
    })
}

impl Mqtt {
    /// The settings with what stands in variables of this process.
    pub(crate) fn resolve(&self) -> Result<Settings, Failure> {
        #[expect(clippy::disallowed_methods, reason = "settings may stand in variables")]
        self.resolved(|name| std::env::var(name).ok())
    }

    fn resolved(&self, variable: impl Fn(&str) -> Option<String>) -> Result<Settings, Failure> {
        let wrong = |message: String, help: &str| {
            let message = format!("mqtt ({}): {message}", self.origin);
            Failure::usage("config_invalid", message).help(help).path("mqtt")
        };
        let of_variable = |name: &str| {
            variable(name).ok_or_else(|| wrong(format!("there is no variable `{name}`"), "set it"))
        };
        let misread = |name: &str, error: &SettingsError| {
            wrong(format!("the variable `{name}`: {}", error.message), error.help)
        };
        let broker = match &self.url {
            Text::Said(broker) => broker.clone(),
            Text::Variable(name) => {
                of_variable(name)?.parse().map_err(|error| misread(name, &error))?
            }
        };
        let client_id = match &self.client_id {
            Text::Said(client_id) => client_id.clone(),
            Text::Variable(name) => {
                of_variable(name)?.parse().map_err(|error| misread(name, &error))?
            }
        };
        let user = match &self.user {
            None => None,
            Some(Text::Said(user)) => Some(user.clone()),
            Some(Text::Variable(name)) => Some(of_variable(name)?),
        };
        let password = self.password.as_deref().map(of_variable).transpose()?;
        let credentials = user.zip(password).map(|(user, password)| Credentials { user, password });
        Ok(Settings {
            broker,
            client_id,
            credentials,
            session_expiry: self.session_expiry,
            in_flight_max: self.in_flight_max,
            subscriptions: self.subscriptions.iter().map(|(one, _)| one.clone()).collect(),
        })
    }

    /// What a subscription is, for people.
    pub(crate) fn shown(subscription: &Subscription) -> String {
        format!("{} starts {}", subscription.topic, subscription.flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "[mqtt]\nurl = \"mqtt://localhost\"\nclient_id = \"one\"\n";
    const TAIL: &str = "[mqtt.subscriptions.ingest]\nflow = \"ingest\"\ntopic = ";

    #[test]
    fn a_broker_and_its_subscriptions_are_read_with_defaults_and_variables() {
        let file = "[mqtt]\nurl = \"env:URL\"\nclient_id = \"env:ID\"\nuser = \"env:USER\"\n\
                    password = \"env:PASSWORD\"\nin_flight = 8\nsession_expiry = \"1d\"\n";
        let rest = format!("{TAIL}\"redforge/+/input\"\ntags = {{ tab = \"topic:2\" }}\n");
        let mqtt = parse("flowgate.toml", &format!("{file}{rest}")).unwrap().unwrap();
        let settings = mqtt
            .resolved(|name| Some(if name == "URL" { "mqtts://b" } else { name }.to_owned()))
            .unwrap();
        assert_eq!(settings.broker.to_string(), "mqtts://b:8883");
        assert_eq!(settings.client_id, "ID".parse().unwrap());
        let credentials = Credentials { user: "USER".to_owned(), password: "PASSWORD".to_owned() };
        assert_eq!(settings.credentials, Some(credentials));
        assert_eq!(settings.in_flight_max.get(), 8);
        let [subscription] = &settings.subscriptions[..] else { panic!("there is one") };
        assert_eq!(Mqtt::shown(subscription), "redforge/+/input starts ingest");
        assert_eq!(subscription.group, "flowgate".parse().unwrap());
        assert_eq!(subscription.id_property.as_deref(), Some("message-id"));
        let absent = mqtt.resolved(|_| None).unwrap_err();
        assert_eq!(absent.message, "mqtt (flowgate.toml:1): there is no variable `URL`");
        let empty = mqtt.resolved(|name| (name == "URL").then(|| "mqtt://b".to_owned()));
        assert_eq!(empty.unwrap_err().message, "mqtt (flowgate.toml:1): there is no variable `ID`");
    }

    #[test]
    fn what_no_broker_would_take_is_refused_with_its_place_and_a_remedy() {
        let rows = [
            (format!("{HEAD}{TAIL}\"a/#/b\"\n"), "6: mqtt: `#` is not the last level of `a/#/b`"),
            (format!("{HEAD}{TAIL}\"\"\n"), "6: mqtt: the topic is empty"),
            (format!("{HEAD}{TAIL}\"a\\u0000\"\n"), "6: mqtt: the topic holds the character NUL"),
            (
                format!("{HEAD}{TAIL}\"$share/g/a\"\n"),
                "6: mqtt: the topic names a shared subscription by itself",
            ),
            (format!("{HEAD}{TAIL}\"a\"\nqos = 2\n"), "7: mqtt: there is no QoS 2 here"),
            (
                format!("{HEAD}{TAIL}\"a\"\ngroup = \"a/b\"\n"),
                "7: mqtt: `a/b` is not the name of a group",
            ),
            (
                format!("{HEAD}{TAIL}\"a\"\ntags = {{ a = \"b\" }}\n"),
                "7: mqtt: a tag cannot come from `b`",
            ),
            (HEAD.replace("one", "") + TAIL + "\"a\"\n", "3: mqtt: the client id is empty"),
            (
                HEAD.replace("mqtt:", "http:") + TAIL + "\"a\"\n",
                "2: mqtt: `http` is not a scheme of MQTT",
            ),
            (
                format!("{HEAD}user = \"me\"\npassword = \"canary\"\n{TAIL}\"a\"\n"),
                "5: mqtt: `password` names no variable",
            ),
        ];
        for (text, expected) in rows {
            let failure = parse("flowgate.toml", &text).unwrap_err();
            assert_eq!(failure.message, format!("flowgate.toml:{expected}"));
            assert!(failure.help.is_some_and(|help| !help.contains("canary")));
        }
        let slip = parse("flowgate.toml", &format!("{HEAD}clientid = \"x\"\n")).unwrap_err();
        assert!(slip.message.starts_with("flowgate.toml:4: unknown field"), "{}", slip.message);
        assert!(parse("flowgate.toml", "").unwrap().is_none());
        // A broker to publish to needs no subscription.
        assert!(parse("flowgate.toml", HEAD).unwrap().unwrap().subscriptions.is_empty());
    }
}
