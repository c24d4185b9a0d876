//! How a catch-up policy is written: `skip`, `latest`, `all` or `{all: 6h}`.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{CATCH_UP_WINDOW, CatchUp};
use crate::flow::Span;

impl Serialize for CatchUp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Skip => serializer.serialize_str("skip"),
            Self::Latest => serializer.serialize_str("latest"),
            Self::All(Span(window)) if *window == CATCH_UP_WINDOW => {
                serializer.serialize_str("all")
            }
            Self::All(window) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("all", window)?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for CatchUp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CatchUpVisitor)
    }
}

struct CatchUpVisitor;

impl<'de> Visitor<'de> for CatchUpVisitor {
    type Value = CatchUp;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`skip`, `latest`, `all` or `{all: 6h}`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        match text {
            "skip" => Ok(CatchUp::Skip),
            "latest" => Ok(CatchUp::Latest),
            "all" => Ok(CatchUp::All(Span(CATCH_UP_WINDOW))),
            other => Err(E::custom(format_args!(
                "`{other}` is not a way to catch up; write `skip`, `latest`, `all` or `{{all: 6h}}`"
            ))),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Some(key) = map.next_key::<String>()? else {
            return Err(de::Error::custom(
                "`catch_up` is an empty mapping; write `skip`, `latest`, `all` or `{all: 6h}`",
            ));
        };
        if key != "all" {
            return Err(de::Error::unknown_field(&key, &["all"]));
        }
        let window = map.next_value()?;
        match map.next_key::<String>()? {
            None => Ok(CatchUp::All(window)),
            Some(_) => {
                Err(de::Error::custom("`catch_up` has more than one key; write `{all: 6h}` alone"))
            }
        }
    }
}

impl JsonSchema for CatchUp {
    fn schema_name() -> Cow<'static, str> {
        "CatchUp".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let window = generator.subschema_for::<Span>();
        json_schema!({
            "description": "What becomes of occurrences that were not started in time, as nobody \
                            was there to do it.",
            "oneOf": [
                { "const": "skip", "description": "They are missed." },
                {
                    "const": "latest",
                    "description": "The latest of them is started; those before are skipped.",
                },
                {
                    "const": "all",
                    "description": "Those of the last 24 hours are started, in their order.",
                },
                {
                    "type": "object", "required": ["all"], "additionalProperties": false,
                    "properties": { "all": window },
                    "description": "Those that are no older than this are started, in their order.",
                },
            ],
        })
    }
}
