//! Signatures of webhooks, as the Standard Webhooks specification has them.
//!
//! What is signed is `ID.TIMESTAMP.BODY`, the body byte by byte as it came, with HMAC-SHA256. A
//! signature is compared in constant time with that of every secret, whether one has matched or
//! not, so the time of an answer tells nothing about them.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use flowgate_core::time::Timestamp;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq};

/// Bytes of the header with the signatures.
const SIGNATURES_BYTES_MAX: usize = 2 << 10;
/// Signatures in it: a sender has one for each of its secrets, of which few are active.
const SIGNATURES_MAX: usize = 10;
/// Bytes of the id of a message.
const ID_BYTES_MAX: usize = 256;
/// Bytes of a secret; the specification has 24 to 64.
const SECRET_BYTES_MIN: usize = 16;

/// What a sender says about a message.
#[derive(Clone, Copy, Debug)]
pub struct Signed<'a> {
    /// `webhook-id`: the same each time that the message is sent.
    pub id: &'a [u8],
    /// `webhook-timestamp`: when it was sent, in seconds since 1970.
    pub timestamp: &'a [u8],
    /// `webhook-signature`: signatures, with spaces between.
    pub signatures: &'a [u8],
}

/// The key of a webhook.
#[derive(Clone)]
pub struct Key(Vec<u8>);

/// A secret that is none of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It begins in another way.
    #[error("it does not begin with `whsec_`")]
    Prefix,
    /// The rest cannot be read.
    #[error("what follows `whsec_` is not Base64")]
    Base64,
    /// It can be guessed.
    #[error("it has less than {SECRET_BYTES_MIN} bytes")]
    Short,
}

/// Why a message is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// It is not of this time.
    #[error("`webhook-timestamp` is no time in seconds, or too far from now")]
    Timestamp,
    /// No secret has signed it.
    #[error("no signature of `webhook-signature` is that of an active secret over this message")]
    Invalid,
}

impl Key {
    /// Reads `whsec_BASE64`.
    pub fn parse(secret: &str) -> Result<Self, KeyError> {
        let encoded = secret.trim().strip_prefix("whsec_").ok_or(KeyError::Prefix)?;
        let key = BASE64_STANDARD.decode(encoded).map_err(|_| KeyError::Base64)?;
        if key.len() < SECRET_BYTES_MIN { Err(KeyError::Short) } else { Ok(Self(key)) }
    }

    /// The signature of a message, as it stands in the header.
    pub fn sign(&self, id: &[u8], timestamp: &[u8], body: &[u8]) -> String {
        format!("v1,{}", BASE64_STANDARD.encode(self.digest(id, timestamp, body)))
    }

    fn digest(&self, id: &[u8], timestamp: &[u8], body: &[u8]) -> [u8; 32] {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        for part in [id, b".", timestamp, b".", body] {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// Whether one of `keys` has signed the message within `tolerance` of `now`; the message's id.
pub fn verify<'a>(
    signed: Signed<'a>,
    body: &[u8],
    keys: &[Key],
    (now, tolerance): (Timestamp, Duration),
) -> Result<&'a str, SignatureError> {
    let id = std::str::from_utf8(signed.id).map_err(|_| SignatureError::Invalid)?;
    if id.is_empty() || id.len() > ID_BYTES_MAX || !id.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(SignatureError::Invalid);
    }
    if !is_timely(signed.timestamp, now, tolerance) {
        return Err(SignatureError::Timestamp);
    }
    if signed.signatures.len() > SIGNATURES_BYTES_MAX {
        return Err(SignatureError::Invalid);
    }
    let given: Vec<[u8; 32]> = signatures(signed.signatures).collect();
    if given.len() > SIGNATURES_MAX {
        return Err(SignatureError::Invalid);
    }
    let mut is_signed = Choice::from(0);
    for key in keys {
        let expected = key.digest(signed.id, signed.timestamp, body);
        for signature in &given {
            is_signed |= expected.ct_eq(signature);
        }
    }
    if bool::from(is_signed) { Ok(id) } else { Err(SignatureError::Invalid) }
}

fn is_timely(timestamp: &[u8], now: Timestamp, tolerance: Duration) -> bool {
    let text = std::str::from_utf8(timestamp).unwrap_or_default();
    // Nothing but digits: other ways to write a number would be other messages.
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let sent_ms = text.parse::<i64>().ok().and_then(|seconds| seconds.checked_mul(1_000));
    let tolerance_ms = u64::try_from(tolerance.as_millis()).unwrap_or(u64::MAX);
    sent_ms.is_some_and(|sent_ms| now.0.abs_diff(sent_ms) <= tolerance_ms)
}

/// The signatures of the version that we know and of the right length.
fn signatures(header: &[u8]) -> impl Iterator<Item = [u8; 32]> {
    header.split(|byte| *byte == b' ').filter_map(|signature| {
        let encoded = signature.strip_prefix(b"v1,")?;
        BASE64_STANDARD.decode(encoded).ok()?.try_into().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_700_000_000_000);
    const TOLERANCE: Duration = Duration::from_mins(5);
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn check(
        timestamp: &str,
        signatures: &str,
        body: &str,
        expected: Result<&'static str, SignatureError>,
    ) {
        let keys = [Key::parse(SECRET).unwrap()];
        let signed = Signed {
            id: b"msg_1",
            timestamp: timestamp.as_bytes(),
            signatures: signatures.as_bytes(),
        };
        let shown = &signatures[..signatures.len().min(80)];
        let verified = verify(signed, body.as_bytes(), &keys, (NOW, TOLERANCE));
        assert_eq!(verified, expected, "{timestamp} {shown} {body}");
    }

    fn sign(timestamp: &str, body: &str) -> String {
        Key::parse(SECRET).unwrap().sign(b"msg_1", timestamp.as_bytes(), body.as_bytes())
    }

    #[test]
    fn the_example_of_the_specification_is_signed_as_it_says() {
        let key = Key::parse(SECRET).unwrap();
        let body = br#"{"test": 2432232314}"#;
        assert_eq!(
            key.sign(b"msg_p5jXN8AQM9LWM0D4loKWxJek", b"1614265330", body),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    #[test]
    fn a_message_counts_as_it_was_signed_only() {
        use SignatureError::Invalid;
        let good = sign("1700000000", r#"{"a":1}"#);
        check("1700000000", &good, r#"{"a":1}"#, Ok("msg_1"));
        check("1700000000", &format!("v1a,xyz v1,AAAA {good}"), r#"{"a":1}"#, Ok("msg_1"));
        check("1700000000", &good, r#"{"a": 1}"#, Err(Invalid));
        check("1700000001", &good, r#"{"a":1}"#, Err(Invalid));
        let bare = good.strip_prefix("v1,").unwrap();
        let rows = ["", "v1,", "v1,!!!", "v1,AAAA", bare, &format!("v2,{bare}"), &good[..20]];
        for signatures in rows {
            check("1700000000", signatures, r#"{"a":1}"#, Err(Invalid));
        }
        let wrong = sign("1700000000", "other");
        check("1700000000", &vec![wrong; 1_000].join(" "), r#"{"a":1}"#, Err(Invalid));
    }

    #[test]
    fn a_thousand_signatures_are_not_looked_at() {
        let (good, wrong) = (sign("1700000000", "{}"), sign("1700000000", "other"));
        let many = format!("{good} {}", vec![wrong.as_str(); 999].join(" "));
        check("1700000000", &many, "{}", Err(SignatureError::Invalid));
        let few = format!("{good} {}", [wrong.as_str(); SIGNATURES_MAX].join(" "));
        check("1700000000", &few, "{}", Err(SignatureError::Invalid));
    }

    #[test]
    fn a_message_of_another_time_is_refused_however_it_says_that() {
        let rows = [
            ("1699999700", true),
            ("1700000300", true),
            ("1699999699", false),
            ("1700000301", false),
            ("abc", false),
            ("", false),
            ("-1700000000", false),
            ("+1700000000", false),
            (" 1700000000", false),
            ("1.7e9", false),
            ("9223372036854775808", false),
            ("9223372036854775807", false),
            ("99999999999999999999999999", false),
        ];
        for (timestamp, is_timely) in rows {
            let expected = if is_timely { Ok("msg_1") } else { Err(SignatureError::Timestamp) };
            check(timestamp, &sign(timestamp, "{}"), "{}", expected);
        }
    }

    #[test]
    fn each_active_secret_counts_and_no_other() {
        let secret = |byte: u8| format!("whsec_{}", BASE64_STANDARD.encode([byte; 24]));
        let [old, new, other] = [1, 2, 3].map(|byte| Key::parse(&secret(byte)).unwrap());
        let active = [old.clone(), new.clone()];
        for (key, is_good) in [(&old, true), (&new, true), (&other, false)] {
            let signature = key.sign(b"i", b"1700000000", b"{}");
            let signed =
                Signed { id: b"i", timestamp: b"1700000000", signatures: signature.as_bytes() };
            assert_eq!(verify(signed, b"{}", &active, (NOW, TOLERANCE)).is_ok(), is_good);
            assert!(verify(signed, b"{}", &[], (NOW, TOLERANCE)).is_err());
        }
    }

    #[test]
    fn a_secret_is_base64_of_enough_bytes() {
        assert_eq!(Key::parse("abc").unwrap_err(), KeyError::Prefix);
        assert_eq!(Key::parse("whsec_!").unwrap_err(), KeyError::Base64);
        assert_eq!(Key::parse("whsec_AAAA").unwrap_err(), KeyError::Short);
        assert_eq!(format!("{:?}", Key::parse(SECRET).unwrap()), "***");
    }
}
