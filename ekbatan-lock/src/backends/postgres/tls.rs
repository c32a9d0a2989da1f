//! Encryption of the lock connections. It is configured like that of the data connections.
//!
//! Invariants: a connection is never less encrypted than configured. Only `disable`, and
//! `prefer` with a server without encryption, lead to plain text.

use std::path::PathBuf;
use std::sync::Arc;

use ekbatan_core::config::{DataSourceConfig, TlsMode, decoded};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::PostgresLocksError;

/// The configured encryption.
pub(super) struct Encryption {
    mode: TlsMode,
    roots: Option<PathBuf>,
}

/// Separates the encryption parameters of an address, which the driver supports only in part,
/// from the rest. The keys of the configuration take precedence.
pub(super) fn split(server: &DataSourceConfig) -> Result<(String, Encryption), PostgresLocksError> {
    let (place, query) = server.url.split_once('?').unwrap_or((&server.url, ""));
    let (mut mode, mut roots, mut kept) = (None, None, Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match decoded(name).as_str() {
            "sslmode" | "ssl-mode" => mode = Some(named(&decoded(value))?),
            "sslrootcert" | "ssl-root-cert" | "ssl-ca" => roots = Some(decoded(value).into()),
            _ => kept.push(pair),
        }
    }
    let url =
        if kept.is_empty() { place.to_owned() } else { format!("{place}?{}", kept.join("&")) };
    let mode = server.tls_mode.or(mode).unwrap_or(TlsMode::Prefer);
    Ok((url, Encryption { mode, roots: server.tls_root_cert.clone().or(roots) }))
}

fn named(word: &str) -> Result<TlsMode, PostgresLocksError> {
    Ok(match word.to_ascii_lowercase().as_str() {
        "disable" => TlsMode::Disable,
        "allow" | "prefer" => TlsMode::Prefer,
        "require" => TlsMode::Require,
        "verify-ca" => TlsMode::VerifyCa,
        "verify-full" => TlsMode::VerifyFull,
        _ => {
            return Err(refused(format!(
                "`{word}` is not an sslmode; use one of disable, prefer, require, verify-ca and verify-full"
            )));
        }
    })
}

fn refused(why: String) -> PostgresLocksError {
    PostgresLocksError::Address(why)
}

impl Encryption {
    /// What the driver requests from the server.
    pub(super) fn ssl_mode(&self) -> SslMode {
        match self.mode {
            TlsMode::Disable => SslMode::Disable,
            TlsMode::Prefer => SslMode::Prefer,
            _ => SslMode::Require,
        }
    }

    pub(super) fn connector(&self) -> Result<MakeRustlsConnect, PostgresLocksError> {
        // Named explicitly, because the application may have installed another provider.
        let provider = Arc::new(ring::default_provider());
        let failed = |error: Error| refused(format!("encryption could not be set up: {error}"));
        let config = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(failed)?;
        let unverified =
            |mode| matches!(mode, TlsMode::Disable | TlsMode::Prefer | TlsMode::Require);
        let config = if unverified(self.mode) {
            config.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider)))
        } else {
            let roots = Arc::new(self.roots()?);
            let whole = WebPkiServerVerifier::builder_with_provider(roots, provider)
                .build()
                .map_err(|error| failed(Error::General(error.to_string())))?;
            match self.mode {
                TlsMode::VerifyCa => {
                    config.dangerous().with_custom_certificate_verifier(Arc::new(AnyName(whole)))
                }
                _ => config.with_webpki_verifier(whole),
            }
        };
        Ok(MakeRustlsConnect::new(config.with_no_client_auth()))
    }

    /// The certificate authorities of the file alone; without a file, those that browsers trust.
    fn roots(&self) -> Result<RootCertStore, PostgresLocksError> {
        let Some(file) = &self.roots else {
            return Ok(RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()));
        };
        let mut roots = RootCertStore::empty();
        let unread = |why: String| {
            let file = file.display();
            refused(format!("the certificates of tls-root-cert, `{file}`, cannot be read: {why}"))
        };
        let mut found = 0;
        for certificate in
            CertificateDer::pem_file_iter(file).map_err(|error| unread(error.to_string()))?
        {
            let certificate = certificate.map_err(|error| unread(error.to_string()))?;
            roots.add(certificate).map_err(|error| unread(error.to_string()))?;
            found += 1;
        }
        if found == 0 {
            return Err(unread("there are none in it, as PEM".to_owned()));
        }
        Ok(roots)
    }
}

/// Accepts any certificate: the connection is encrypted, but the server is not authenticated.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Checks the signature of a certificate, but not its host name.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.0.verify_server_cert(certificate, between, name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str) -> Result<(String, SslMode), PostgresLocksError> {
        split(&DataSourceConfig::new(url)).map(|(url, asked)| (url, asked.ssl_mode()))
    }

    #[test]
    fn the_address_selects_the_encryption() {
        for (url, rest, mode) in [
            ("postgres://u@h/d", "postgres://u@h/d", SslMode::Prefer),
            ("postgres://h/d?sslmode=disable", "postgres://h/d", SslMode::Disable),
            ("postgres://h/d?sslmode=require&x=y", "postgres://h/d?x=y", SslMode::Require),
            ("postgres://h/d?ssl%2Dmode=require", "postgres://h/d", SslMode::Require),
            (
                "postgres://h/d?sslmode=verify-full&sslrootcert=a",
                "postgres://h/d",
                SslMode::Require,
            ),
        ] {
            assert_eq!(of(url).unwrap(), (rest.to_owned(), mode), "{url}");
        }
        let refused = of("postgres://h/d?sslmode=always").unwrap_err();
        assert!(refused.to_string().contains("use one of disable, prefer"), "{refused}");
    }

    #[test]
    fn the_keys_of_a_configuration_take_precedence() {
        let server =
            DataSourceConfig::new("postgres://h/d?sslmode=disable").tls_mode(TlsMode::Require);
        assert_eq!(split(&server).unwrap().1.ssl_mode(), SslMode::Require);
    }

    #[test]
    fn only_the_authorities_of_a_given_file_are_trusted() {
        let server = DataSourceConfig::new("postgres://h/d").tls_mode(TlsMode::VerifyFull);
        let trusted = |server: &DataSourceConfig| split(server).unwrap().1.roots().unwrap().len();
        assert!(trusted(&server) > 1);
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/locks/tls/ca.pem");
        assert_eq!(trusted(&server.tls_root_cert(file)), 1);
    }

    #[test]
    fn a_missing_certificate_file_is_named() {
        let server = DataSourceConfig::new("postgres://h/d")
            .tls_mode(TlsMode::VerifyFull)
            .tls_root_cert("nowhere.pem");
        let refused = split(&server).unwrap().1.connector().map(drop).unwrap_err();
        assert!(refused.to_string().contains("`nowhere.pem`, cannot be read"), "{refused}");
    }
}
