//! Parameters in the part of an address behind the question mark.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::error::ApiError;

/// The most that a page holds; whoever asks for more gets this many.
pub(crate) const LIMIT_MAX: usize = 200;
/// What a page holds if nobody asks.
const LIMIT_DEFAULT: usize = 50;

/// The parameters of a request. Each is taken once, and what is left at the end is refused.
#[derive(Clone, Debug)]
pub(crate) struct Query(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let text = parts.uri.query().unwrap_or_default();
        let pairs: axum::extract::Query<Vec<(String, String)>> =
            axum::extract::Query::try_from_uri(&parts.uri).map_err(|_| {
                ApiError::bad_request("query_param", format!("`{text}` cannot be read"))
            })?;
        let pairs = pairs.0;
        if let Some((name, _)) = pairs.iter().find(|(_, value)| value.contains('\0')) {
            return Err(invalid(name, "it holds the character NUL"));
        }
        Ok(Self(pairs))
    }
}

/// A parameter that cannot be used.
pub(crate) fn invalid(name: &str, why: &str) -> ApiError {
    ApiError::bad_request("query_param", format!("the parameter `{name}` cannot be used: {why}"))
        .path(name)
}

impl Query {
    /// All values of a parameter; a value with commas is several.
    pub(crate) fn list(&mut self, name: &str) -> Vec<String> {
        let all = self.all(name);
        let parts = all.iter().flat_map(|value| value.split(','));
        parts.map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    /// All values of a parameter.
    pub(crate) fn all(&mut self, name: &str) -> Vec<String> {
        self.0.extract_if(.., |(given, _)| given == name).map(|(_, value)| value).collect()
    }

    /// The value of a parameter; one that is empty is not there.
    pub(crate) fn one(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        let mut all = self.all(name);
        if all.len() > 1 {
            return Err(invalid(name, "it is there more than once"));
        }
        Ok(all.pop().filter(|value| !value.is_empty()))
    }

    /// The value of a parameter that is a number of this type.
    pub(crate) fn number<T: std::str::FromStr>(
        &mut self,
        name: &str,
    ) -> Result<Option<T>, ApiError> {
        let Some(all) = self.all(name).into_iter().next() else { return Ok(None) };
        let is_plain = !all.is_empty() && all.bytes().all(|byte| byte.is_ascii_digit());
        let parsed = is_plain.then(|| all.parse().ok()).flatten();
        parsed.map(Some).ok_or_else(|| invalid(name, &format!("`{all}` is not such a number")))
    }

    /// How many are wanted.
    pub(crate) fn limit(&mut self) -> Result<usize, ApiError> {
        self.limit_to(LIMIT_MAX)
    }

    /// How many are wanted, where a page may hold `max`.
    pub(crate) fn limit_to(&mut self, max: usize) -> Result<usize, ApiError> {
        match self.number::<u64>("limit")? {
            None => Ok(LIMIT_DEFAULT.min(max)),
            Some(0) => Err(invalid("limit", "it is at least 1")),
            Some(limit) => Ok(usize::try_from(limit).unwrap_or(usize::MAX).min(max)),
        }
    }

    /// Refuses what nobody took.
    pub(crate) fn end(self) -> Result<(), ApiError> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(invalid(name, "there is no such parameter here")),
        }
    }
}
