//! Where the server is, and how to reach it.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::task::JoinSet;
use tokio_postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;
use url::form_urlencoded;

use super::fault::Fault;
use crate::StoreError;

/// After this long without traffic the connection is tested.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// A server and a database, with all that a connection needs.
#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) config: Config,
    pub(super) tls: MakeRustlsConnect,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The driver shows no password.
        f.debug_struct("Endpoint").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Reads a URL, of which [`split_parameters`] has taken what is ours.
    pub(super) fn parse(url: &str, call_timeout: Duration) -> Result<Self, StoreError> {
        let wrong = |what: String| StoreError::Incompatible {
            message: format!("the URL of PostgreSQL: {what}"),
        };
        let mut root_file = None;
        let mut is_verified = false;
        let mut unknown_mode = None;
        let url = split_parameters(url, |name, value| match (name, value) {
            ("sslrootcert", path) => {
                root_file = Some(path.to_owned());
                Kept::No
            }
            ("sslmode", "verify-full") => {
                is_verified = true;
                Kept::As("require")
            }
            ("sslmode", "disable" | "prefer" | "require") => Kept::Yes,
            ("sslmode", mode) => {
                unknown_mode = Some(mode.to_owned());
                Kept::No
            }
            (_, _) => Kept::Yes,
        });
        if let Some(mode) = unknown_mode {
            let known = "disable, prefer, require and verify-full";
            return Err(wrong(format!("sslmode={mode} is not known; there are {known}")));
        }
        let mut config = Config::from_str(&url).map_err(|error| {
            wrong(std::error::Error::source(&error).unwrap_or(&error).to_string())
        })?;
        if config.get_application_name().is_none() {
            config.application_name("flowgate");
        }
        config
            .connect_timeout(call_timeout)
            .tcp_user_timeout(call_timeout * 2)
            .keepalives_idle(KEEPALIVE_IDLE);
        let roots =
            if is_verified { Some(roots(root_file.as_deref()).map_err(wrong)?) } else { None };
        Ok(Self { config, tls: MakeRustlsConnect::new(tls(roots)) })
    }

    /// A connection of its own, and the task that drives it on the runtime of the caller.
    pub(super) async fn connect(&self, within: Duration) -> Result<(Client, JoinSet<()>), Fault> {
        let connect = self.config.connect(self.tls.clone());
        let connected = tokio::time::timeout(within, connect).await;
        let (client, connection) = connected.map_err(|_| Fault::Silence(within))??;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to PostgreSQL ended");
            }
        });
        Ok((client, driver))
    }
}

/// What becomes of a parameter of a URL.
pub(super) enum Kept<'a> {
    /// It stays.
    Yes,
    /// It goes.
    No,
    /// It stays with this value.
    As(&'a str),
}

/// `url` with those of its parameters that `keep` keeps.
pub(super) fn split_parameters(
    url: &str,
    mut keep: impl FnMut(&str, &str) -> Kept<'static>,
) -> String {
    // Several hosts are more than a URL type can hold, so only the end is taken apart.
    let Some((start, query)) = url.split_once('?') else { return url.to_owned() };
    let mut kept = form_urlencoded::Serializer::new(String::new());
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match keep(&name, &value) {
            Kept::Yes => kept.append_pair(&name, &value),
            Kept::As(other) => kept.append_pair(&name, other),
            Kept::No => &mut kept,
        };
    }
    match kept.finish() {
        query if query.is_empty() => start.to_owned(),
        // The driver reads `+` as it stands.
        query => format!("{start}?{}", query.replace('+', "%20")),
    }
}

/// The certificates that a server's certificate must go back to.
fn roots(file: Option<&str>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = file {
        let read =
            CertificateDer::pem_file_iter(path).map_err(|error| format!("{path}: {error}"))?;
        for certificate in read {
            let certificate = certificate.map_err(|error| format!("{path}: {error}"))?;
            roots.add(certificate).map_err(|error| format!("{path}: {error}"))?;
        }
    } else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    if roots.is_empty() {
        let place = file.unwrap_or("the certificates of this host");
        return Err(format!("{place}: there is no certificate; name a file with sslrootcert="));
    }
    Ok(roots)
}

fn tls(roots: Option<RootCertStore>) -> ClientConfig {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider knows the default versions");
    match roots {
        Some(roots) => builder.with_root_certificates(roots).with_no_client_auth(),
        None => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Unverified(provider)))
            .with_no_client_auth(),
    }
}

/// Takes any certificate: `prefer` and `require` encrypt and do not ask who answers, as in every
/// other client of PostgreSQL.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::SslMode;

    use super::*;

    fn parse(url: &str) -> Result<Endpoint, StoreError> {
        Endpoint::parse(url, Duration::from_secs(1))
    }

    #[test]
    fn a_url_may_name_several_hosts_and_how_to_encrypt() {
        let endpoint = parse("postgres://me:secret@a:1,b:2/db?sslmode=require").unwrap();
        assert_eq!(endpoint.config.get_ports(), [1, 2]);
        assert_eq!(endpoint.config.get_ssl_mode(), SslMode::Require);
        assert_eq!(endpoint.config.get_application_name(), Some("flowgate"));
        assert!(!format!("{endpoint:?}").contains("secret"));
        let named = parse("postgres://a/db?application_name=two+words").unwrap();
        assert_eq!(named.config.get_application_name(), Some("two words"));
    }

    #[test]
    fn a_wrong_url_is_refused_with_what_is_wrong() {
        for (url, said) in [
            ("postgres://a/db?sslmode=allow", "sslmode=allow is not known"),
            ("postgres://a/db?colour=red", "unknown option `colour`"),
            ("postgres://a/db?sslmode=verify-full&sslrootcert=/no/such/file", "/no/such/file"),
            ("mysql://a/db", "unexpected EOF"),
        ] {
            let error = parse(url).unwrap_err().to_string();
            assert!(error.contains(said), "{url}: {error}");
        }
    }
}
