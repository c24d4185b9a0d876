//! Where the collector is.

use std::fmt;
use std::str::FromStr;

use reqwest::Url;

/// Where spans go, by the rule of OTLP over HTTP.
const PATH: &str = "v1/traces";

/// The base URL of a collector that speaks OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(Url);

/// What is wrong with the URL of a collector.
#[derive(Debug, thiserror::Error)]
#[error("`{text}` is not the URL of a collector: {why}")]
pub struct EndpointError {
    text: String,
    why: String,
}

impl Endpoint {
    /// Where spans are posted.
    pub fn traces_url(&self) -> String {
        let base = self.0.as_str().trim_end_matches('/');
        if base.ends_with(PATH) { base.to_owned() } else { format!("{base}/{PATH}") }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let wrong = |why: String| EndpointError { text: text.to_owned(), why };
        let url: Url = text.parse().map_err(|error| wrong(format!("{error}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong("it begins neither with http:// nor with https://".to_owned()));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(wrong("it has a query or a fragment".to_owned()));
        }
        Ok(Self(url))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_go_to_their_path_below_the_base() {
        let rows = [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
            ("https://host/otlp", "https://host/otlp/v1/traces"),
            ("https://host/otlp/v1/traces", "https://host/otlp/v1/traces"),
        ];
        for (base, url) in rows {
            assert_eq!(base.parse::<Endpoint>().unwrap().traces_url(), url);
        }
    }

    #[test]
    fn what_cannot_be_posted_to_is_refused() {
        for text in ["", "localhost:4318", "grpc://host:4317", "http://host/?a=b"] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("`{text}` is not the URL of a collector")),
                "{error}"
            );
        }
    }
}
