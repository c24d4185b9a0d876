//! What to listen to, and where.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use flowgate_core::limits::TAGS_MAX;
use url::Url;

/// Bytes of every text of MQTT: filters, topics, ids, names.
const TEXT_BYTES_MAX: usize = 65_535;
/// Bytes of a client id: all that we make of it, with the name of a subscription, is a text.
const CLIENT_ID_BYTES_MAX: usize = 1_024;
/// The ports that brokers have unless the URL says another.
const PORT: u16 = 1883;
const PORT_TLS: u16 = 8883;

/// How long the broker keeps a session whose client is away, unless the settings say otherwise.
pub const SESSION_EXPIRY_DEFAULT: Duration = Duration::from_hours(7 * 24);
/// Messages of a subscription that are on their way into the store at the same time, unless the
/// settings say otherwise.
pub const IN_FLIGHT_DEFAULT: NonZeroU16 = NonZeroU16::new(64).expect("64 is not 0");
/// The user property with the id of a message, unless the settings say otherwise.
pub const ID_PROPERTY_DEFAULT: &str = "message-id";
/// The group of a shared subscription, unless the settings say otherwise.
pub const GROUP_DEFAULT: &str = "flowgate";

/// A broker, and what to listen to there.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The broker.
    pub broker: Broker,
    /// Who we are there. No two instances have the same, and each has the same after a restart.
    pub client_id: ClientId,
    /// What we show, if anything.
    pub credentials: Option<Credentials>,
    /// How long the broker keeps the session, and what waits in it, while we are away.
    pub session_expiry: Duration,
    /// Messages of each subscription that are on their way into the store at the same time.
    pub in_flight_max: NonZeroU16,
    /// What to listen to.
    pub subscriptions: Vec<Subscription>,
}

/// The user and the password that the broker asks for.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user.
    pub user: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Messages that start runs of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Its name, which no other subscription of an instance has.
    pub name: Arc<str>,
    /// Which topics.
    pub topic: TopicFilter,
    /// With whom the messages are shared: each goes to one member of the group.
    pub group: Group,
    /// The flow that each message starts.
    pub flow: Arc<str>,
    /// The user property that holds a message's id; none if messages have no ids.
    pub id_property: Option<String>,
    /// Tags of the runs, by name.
    pub tags: BTreeMap<Arc<str>, TagSource>,
}

impl Subscription {
    /// What the broker is asked for.
    pub(crate) fn shared_filter(&self) -> String {
        format!("$share/{}/{}", self.group.0, self.topic.0)
    }
}

/// What is wrong with a setting, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}; {help}")]
pub struct SettingsError {
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub help: &'static str,
}

fn wrong<T>(message: impl Into<String>, help: &'static str) -> Result<T, SettingsError> {
    Err(SettingsError { message: message.into(), help })
}

/// Where a broker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) is_encrypted: bool,
}

impl FromStr for Broker {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        const HELP: &str = "write its scheme, name and port, such as `mqtt://127.0.0.1:1883` or \
                            `mqtts://broker.example.org:8883`";
        // What the text holds is not repeated: there may be a password in it.
        let Ok(url) = Url::parse(text) else { return wrong("that is not a URL", HELP) };
        let is_encrypted = match url.scheme() {
            "mqtt" => false,
            "mqtts" => true,
            scheme => return wrong(format!("`{scheme}` is not a scheme of MQTT"), HELP),
        };
        if !url.username().is_empty() || url.password().is_some() {
            let help = "name variables with `user` and `password`; the URL is shown in logs";
            return wrong("the URL holds a user or a password", help);
        }
        if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
            return wrong("the URL has a path, a query or a fragment", HELP);
        }
        let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
            return wrong("the URL names no host", HELP);
        };
        if is_encrypted && host.starts_with('[') {
            return wrong("a certificate is not for an address of IPv6", "write the broker's name");
        }
        let default = if is_encrypted { PORT_TLS } else { PORT };
        Ok(Self { host: host.to_owned(), port: url.port().unwrap_or(default), is_encrypted })
    }
}

impl fmt::Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, is_encrypted } = self;
        let scheme = if *is_encrypted { "mqtts" } else { "mqtt" };
        write!(f, "{scheme}://{host}:{port}")
    }
}

/// Who an instance is to its broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientId(String);

impl ClientId {
    /// The id on one of the instance's connections: that of a subscription has its name.
    pub(crate) fn of(&self, connection: &str) -> String {
        format!("{}-{connection}", self.0)
    }
}

impl FromStr for ClientId {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        if text.is_empty() {
            let help = "write one that this instance alone has and keeps, such as `flowgate-1`; \
                        without it the broker would keep no session, and lose what comes while we \
                        are away";
            return wrong("the client id is empty", help);
        }
        if text.len() > CLIENT_ID_BYTES_MAX || text.chars().any(char::is_control) {
            let help = "write at most 1024 bytes without control characters";
            return wrong("the client id is too long, or no text", help);
        }
        Ok(Self(text.to_owned()))
    }
}

/// Which topics a subscription is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicFilter(String);

impl FromStr for TopicFilter {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        if text.is_empty() {
            return wrong("the topic is empty", "write one, such as `redforge/ingest/input`");
        }
        if text.len() > TEXT_BYTES_MAX - 1_024 {
            return wrong("the topic is too long", "MQTT has topics of at most 64 KiB");
        }
        if text.contains('\0') {
            return wrong(
                "the topic holds the character NUL",
                "no topic of MQTT has it; remove it",
            );
        }
        if text == "$share" || text.starts_with("$share/") {
            let help = "write the topic alone, and the group as `group`: every subscription is a \
                        shared one";
            return wrong("the topic names a shared subscription by itself", help);
        }
        let mut levels = text.split('/').peekable();
        while let Some(level) = levels.next() {
            if level.contains('#') && (level != "#" || levels.peek().is_some()) {
                let help = "`#` stands for all levels that follow, so it is the whole last level";
                return wrong(format!("`#` is not the last level of `{text}`"), help);
            }
            if level.contains('+') && level != "+" {
                let help = "`+` stands for one level, so it is that whole level";
                return wrong(format!("`+` is a part of a level of `{text}`"), help);
            }
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for TopicFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Those who share the messages of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group(String);

impl FromStr for Group {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        let is_name = !text.is_empty()
            && text.len() <= 128
            && !text.contains(['/', '+', '#'])
            && !text.chars().any(char::is_control);
        if is_name {
            return Ok(Self(text.to_owned()));
        }
        let help = "write a name of at most 128 bytes without `/`, `+` and `#`";
        wrong(format!("`{}` is not the name of a group", text.escape_debug()), help)
    }
}

/// Where the value of a tag comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TagSource {
    /// The topic of the message.
    Topic,
    /// One level of it, from 1.
    Level(usize),
    /// A user property of the message.
    Property(String),
}

impl FromStr for TagSource {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        const HELP: &str = "write `topic`, `topic:N` for its level N from 1, or `property:NAME`";
        if text == "topic" {
            return Ok(Self::Topic);
        }
        if let Some(level) = text.strip_prefix("topic:") {
            let level = level.parse().ok().filter(|level| *level > 0);
            return level.map_or_else(|| wrong("that is no level", HELP), |n| Ok(Self::Level(n)));
        }
        match text.strip_prefix("property:") {
            Some(name) if !name.is_empty() => Ok(Self::Property(name.to_owned())),
            Some(_) | None => wrong(format!("a tag cannot come from `{text}`"), HELP),
        }
    }
}

/// Checks how many tags there are.
pub fn check_tags(tags: &BTreeMap<Arc<str>, TagSource>) -> Result<(), SettingsError> {
    if tags.len() > TAGS_MAX {
        return wrong(format!("there are {} tags", tags.len()), "a run has at most 32 tags");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal<T: FromStr<Err = SettingsError>>(text: &str) -> String {
        match text.parse::<T>() {
            Ok(_) => "taken".to_owned(),
            Err(error) => error.message,
        }
    }

    #[test]
    fn a_topic_that_no_broker_would_take_is_refused_with_its_fault() {
        let rows = [
            ("redforge/ingest/input", "taken"),
            ("+/a/+/#", "taken"),
            ("#", "taken"),
            ("/", "taken"),
            ("", "the topic is empty"),
            ("a\0b", "the topic holds the character NUL"),
            ("a/#/b", "`#` is not the last level of `a/#/b`"),
            ("a#", "`#` is not the last level of `a#`"),
            ("a/b+", "`+` is a part of a level of `a/b+`"),
            ("$share/g/a", "the topic names a shared subscription by itself"),
        ];
        for (text, expected) in rows {
            assert_eq!(refusal::<TopicFilter>(text), expected, "{text:?}");
        }
        assert_eq!(refusal::<TopicFilter>(&"a".repeat(70_000)), "the topic is too long");
    }

    #[test]
    fn a_client_without_an_id_and_a_group_without_a_name_are_refused() {
        assert_eq!(refusal::<ClientId>(""), "the client id is empty");
        assert_eq!(refusal::<ClientId>("a\nb"), "the client id is too long, or no text");
        assert_eq!(refusal::<ClientId>("flowgate-1"), "taken");
        assert_eq!(refusal::<Group>("a/b"), "`a/b` is not the name of a group");
        assert_eq!(refusal::<Group>(""), "`` is not the name of a group");
        assert_eq!(refusal::<Group>("flowgate"), "taken");
    }

    #[test]
    fn the_url_of_a_broker_is_one_of_mqtt_and_holds_no_password() {
        for (text, shown) in [
            ("mqtt://localhost", "mqtt://localhost:1883"),
            ("mqtts://b.example.org/", "mqtts://b.example.org:8883"),
            ("mqtt://127.0.0.1:7", "mqtt://127.0.0.1:7"),
            ("mqtt://[::1]:7", "mqtt://[::1]:7"),
        ] {
            assert_eq!(text.parse::<Broker>().unwrap().to_string(), shown);
        }
        for (text, expected) in [
            ("localhost:1883", "`localhost` is not a scheme of MQTT"),
            ("http://b", "`http` is not a scheme of MQTT"),
            ("mqtt://u:p@b", "the URL holds a user or a password"),
            ("mqtt://b/path", "the URL has a path, a query or a fragment"),
            ("mqtt:", "the URL names no host"),
            ("", "that is not a URL"),
        ] {
            assert_eq!(refusal::<Broker>(text), expected, "{text}");
        }
    }

    #[test]
    fn a_tag_comes_from_the_topic_or_from_a_property() {
        assert_eq!("topic".parse(), Ok(TagSource::Topic));
        assert_eq!("topic:2".parse(), Ok(TagSource::Level(2)));
        assert_eq!("property:source".parse(), Ok(TagSource::Property("source".to_owned())));
        for text in ["topic:0", "topic:x", "property:", "payload"] {
            assert_ne!(refusal::<TagSource>(text), "taken", "{text}");
        }
    }
}
