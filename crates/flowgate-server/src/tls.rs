//! The certificate of a listener, from PEM files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
pub use tokio_rustls::TlsAcceptor;

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read as PEM.
    #[error("cannot read {}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: pem::Error,
    },
    /// There is none in the file.
    #[error("{} holds no certificate", .0.display())]
    NoCertificate(PathBuf),
    /// The certificate and the key do not go together.
    #[error("the certificate and the key cannot be used")]
    Unusable(#[source] rustls::Error),
}

/// Whoever shakes hands with the certificate chain of `cert` and the private key of `key`.
pub fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::File { path, source }
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(cert)
        .map_err(at(cert))?
        .collect::<Result<_, _>>()
        .map_err(at(cert))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate(cert.to_owned()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(at(key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(TlsError::Unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
