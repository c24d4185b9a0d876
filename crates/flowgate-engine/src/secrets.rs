//! Values that flows name and nobody may see.
//!
//! A value is looked up for each attempt that needs it and lives no longer than that attempt. It is
//! never stored and never logged: its `Debug` form is `***`, and what a step says is searched for
//! the values that it was given before anything of it is kept.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flowgate_core::flow::{SecretError, SecretPart, is_secret_name, secret_parts};

/// Bytes of one secret.
pub(crate) const SECRET_BYTES_MAX: usize = 64 << 10;
/// What stands in a secret's place.
const MASK: &str = "***";
/// Shorter values are not searched for: half of every text would match.
const MASKED_BYTES_MIN: usize = 4;
/// Shorter lines of a value of several lines are not searched for by themselves.
const MASKED_LINE_BYTES_MIN: usize = 12;

/// A value that nobody may see.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

/// The secrets that an instance can give to its steps.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    values: Arc<BTreeMap<String, Secret>>,
    folder: Option<Arc<Path>>,
}

/// A secret could not be put in.
#[derive(Debug, thiserror::Error)]
pub enum SecretFault {
    /// Nobody has given it to this instance.
    #[error(
        "secret_missing: this instance has no secret `{name}`; set the variable \
         FLOWGATE_SECRET_{name}, or put a file `{name}` into the folder that the setting \
         `secrets.folder` names"
    )]
    Missing {
        /// Its name.
        name: String,
    },
    /// Its file cannot be used.
    #[error("secret_unreadable: the file of the secret `{name}` cannot be used")]
    Unreadable {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The reference cannot be read.
    #[error(transparent)]
    Reference(SecretError),
}

impl Secret {
    /// Keeps `value` to itself.
    pub fn new(value: impl Into<Arc<str>>) -> Self {
        Self(value.into())
    }

    /// The value, for whoever must have it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl Secrets {
    /// These values, and the files in `folder`, each of which is called as its secret.
    pub fn new(values: BTreeMap<String, Secret>, folder: Option<PathBuf>) -> Self {
        Self { values: Arc::new(values), folder: folder.map(Into::into) }
    }

    /// These values, and the same folder.
    pub fn with(&self, values: BTreeMap<String, Secret>) -> Self {
        Self { values: Arc::new(values), folder: self.folder.clone() }
    }

    /// The secret called `name`. A file is read each time, so that a new value counts at once.
    pub async fn get(&self, name: &str) -> Result<Secret, SecretFault> {
        let missing = || SecretFault::Missing { name: name.to_owned() };
        if let Some(secret) = self.values.get(name) {
            return Ok(secret.clone());
        }
        let folder = self.folder.as_ref().filter(|_| is_secret_name(name)).ok_or_else(missing)?;
        let unreadable = |source| SecretFault::Unreadable { name: name.to_owned(), source };
        match read(&folder.join(name)).await {
            Ok(text) => Ok(Secret::new(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing()),
            Err(error) => Err(unreadable(error)),
        }
    }

    /// `text` with the values of the secrets that it names, which are added to `used`.
    pub async fn fill(&self, text: &str, used: &mut Vec<Secret>) -> Result<String, SecretFault> {
        let mut filled = String::with_capacity(text.len());
        for part in secret_parts(text).map_err(SecretFault::Reference)? {
            match part {
                SecretPart::Text(text) => filled.push_str(text),
                SecretPart::Secret(name) => {
                    let secret = self.get(name).await?;
                    filled.push_str(secret.reveal());
                    used.push(secret);
                }
            }
        }
        Ok(filled)
    }
}

/// The text of a file, without the line end that editors put there.
async fn read(path: &Path) -> io::Result<String> {
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let bytes = tokio::fs::metadata(path).await?.len();
    if bytes > SECRET_BYTES_MAX as u64 {
        return Err(wrong(format!("it has {bytes} bytes, over the limit of {SECRET_BYTES_MAX}")));
    }
    let text = String::from_utf8(tokio::fs::read(path).await?);
    let mut text = text.map_err(|_| wrong("it is not UTF-8".to_owned()))?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

/// The values that must not show in what a step says.
#[derive(Default)]
pub(crate) struct Masks(Vec<String>);

impl Masks {
    pub(crate) fn new(secrets: &[Secret]) -> Self {
        let mut needles = Vec::new();
        for secret in secrets {
            let value = secret.reveal();
            if value.len() < MASKED_BYTES_MIN {
                continue;
            }
            needles.push(value.to_owned());
            // As it looks within a JSON text.
            let json = serde_json::Value::from(value).to_string();
            needles.push(json[1..json.len() - 1].to_owned());
            let lines = value.lines().filter(|line| line.len() >= MASKED_LINE_BYTES_MIN);
            needles.extend(lines.map(str::to_owned));
        }
        // A value may be a part of another one.
        needles.sort_by_key(|needle| std::cmp::Reverse(needle.len()));
        needles.dedup();
        Self(needles)
    }

    /// `text` with a mask in place of every value.
    pub(crate) fn mask<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut masked = Cow::Borrowed(text);
        for needle in &self.0 {
            if masked.contains(needle.as_str()) {
                masked = Cow::Owned(masked.replace(needle.as_str(), MASK));
            }
        }
        masked
    }
}

impl fmt::Debug for Masks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Masks({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(values: &[(&str, &str)], folder: Option<PathBuf>) -> Secrets {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), Secret::new(*value)));
        Secrets::new(values.collect(), folder)
    }

    #[tokio::test]
    async fn a_variable_counts_before_a_file_and_a_file_is_read_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("B");
        std::fs::write(&file, "from file\r\n").unwrap();
        std::fs::write(folder.path().join("A"), "unused").unwrap();
        let secrets = secrets(&[("A", "from variable")], Some(folder.path().into()));
        let mut used = Vec::new();
        let filled = secrets.fill("${secret:A}/${secret:B}", &mut used).await.unwrap();
        assert_eq!((filled.as_str(), used.len()), ("from variable/from file", 2));
        std::fs::write(&file, "rotated").unwrap();
        assert_eq!(secrets.get("B").await.unwrap().reveal(), "rotated");
        std::fs::write(&file, vec![b'x'; SECRET_BYTES_MAX + 1]).unwrap();
        let told = secrets.get("B").await.unwrap_err();
        assert!(matches!(told, SecretFault::Unreadable { .. }), "{told:?}");
    }

    #[tokio::test]
    async fn a_missing_secret_names_the_way_out_and_no_name_leads_out_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        std::fs::write(folder.path().join("outside"), "value").unwrap();
        let secrets = secrets(&[], Some(folder.path().join("inner")));
        let told = secrets.get("TOKEN").await.unwrap_err().to_string();
        assert!(told.starts_with("secret_missing: "), "{told}");
        assert!(told.contains("FLOWGATE_SECRET_TOKEN"), "{told}");
        let outside = secrets.get("../outside").await.unwrap_err();
        assert!(matches!(outside, SecretFault::Missing { .. }), "{outside:?}");
    }

    #[test]
    fn a_value_is_masked_as_it_is_and_as_json_and_line_by_line() {
        let check = |secret: &str, text: &str, expected: &str| {
            assert_eq!(Masks::new(&[Secret::new(secret)]).mask(text), expected);
        };
        check("hunter2!", "it is hunter2! and hunter2!", "it is *** and ***");
        check("say \"hi\"", r#"{"log":"say \"hi\" now"}"#, r#"{"log":"*** now"}"#);
        check("line number one\nline number two", "x line number two", "x ***");
        check("abc", "abc", "abc");
        let both = Masks::new(&[Secret::new("hunter"), Secret::new("hunter2!")]);
        assert_eq!(both.mask("hunter2! hunter"), "*** ***");
    }

    #[test]
    fn a_secret_has_no_form_that_shows_it() {
        let secrets = secrets(&[("A", "canary-value")], None);
        let masks = Masks::new(&[Secret::new("canary-value")]);
        assert!(!format!("{secrets:?} {masks:?}").contains("canary"));
    }
}
