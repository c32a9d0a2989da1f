//! Where the cluster is, and how to log in.

use std::path::PathBuf;
use std::time::Duration;

use krafka::Kafka;
use krafka::auth::{AuthConfig, TlsConfig};

use crate::error::KafkaError;

/// How to log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KafkaLogin {
    /// SASL PLAIN.
    Plain,
    /// SASL SCRAM-SHA-256.
    ScramSha256,
    /// SASL SCRAM-SHA-512.
    ScramSha512,
}

/// The settings of a broker.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) servers: String,
    /// Whether the address has a login. It would be printed with the address, so it is not read there.
    pub(crate) address_has_login: bool,
    pub(crate) login: Option<(KafkaLogin, String, String)>,
    pub(crate) tls: bool,
    pub(crate) root_certificate: Option<PathBuf>,
    pub(crate) most_bytes: usize,
    pub(crate) ack_timeout: Duration,
}

impl Settings {
    /// Fails if a setting cannot work.
    pub(crate) fn check(&self) -> Result<(), KafkaError> {
        let refuse = |setting, why: String| Err(KafkaError::Setting { setting, why });
        if self.address_has_login {
            let why =
                "has a login, which is not read there; give `username` and `password` beside it";
            return refuse("url", why.into());
        }
        if self.most_bytes == 0 {
            return refuse("most_bytes", "is 0, so nothing could be sent; give at least 1".into());
        }
        Ok(())
    }

    /// Reads `kafka://HOST:PORT,HOST:PORT`; the scheme may be missing. Returns the servers, and whether
    /// there is a login before them.
    pub(crate) fn servers(url: &str) -> (String, bool) {
        let servers = url.trim_start_matches("kafka://").trim_end_matches('/');
        match servers.rsplit_once('@') {
            Some((_login, servers)) => (servers.to_owned(), true),
            None => (servers.to_owned(), false),
        }
    }

    fn auth(&self) -> AuthConfig {
        let auth = match &self.login {
            None => AuthConfig::plaintext(),
            Some((KafkaLogin::Plain, user, password)) => AuthConfig::sasl_plain(user, password),
            Some((KafkaLogin::ScramSha256, user, password)) => {
                AuthConfig::sasl_scram_sha256(user, password)
            }
            Some((KafkaLogin::ScramSha512, user, password)) => {
                AuthConfig::sasl_scram_sha512(user, password)
            }
        };
        if !self.tls {
            return auth;
        }
        let tls = match &self.root_certificate {
            Some(file) => TlsConfig::new().with_ca_cert(file.display().to_string()),
            None => TlsConfig::new(),
        };
        if self.login.is_some() { auth.with_tls(tls) } else { AuthConfig::ssl(tls) }
    }

    pub(crate) async fn connect(&self) -> Result<Kafka, KafkaError> {
        let connecting = Kafka::builder(self.servers.clone())
            .client_id("ekbatan")
            .security(self.auth())
            .request_timeout(self.ack_timeout / 2)
            .connect_timeout(self.ack_timeout / 2)
            .connect();
        match tokio::time::timeout(self.ack_timeout, connecting).await {
            Ok(kafka) => Ok(kafka?),
            Err(_) => Err(KafkaError::Silent(self.ack_timeout)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            servers: "a:9092".to_owned(),
            address_has_login: false,
            login: None,
            tls: false,
            root_certificate: None,
            most_bytes: 1,
            ack_timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn a_login_in_the_address_is_refused_and_not_shown() {
        assert_eq!(Settings::servers("kafka://a:9092,b:9092/"), ("a:9092,b:9092".into(), false));
        let url = "kafka://me:se,c@ret@a:9092";
        assert_eq!(Settings::servers(url), ("a:9092".to_owned(), true));
        let (servers, address_has_login) = Settings::servers(url);
        let settings = Settings { servers, address_has_login, ..settings() };
        let refused = settings.check().unwrap_err().to_string();
        assert!(refused.contains("`url` has a login") && !refused.contains("ret"), "{refused}");
    }

    #[test]
    fn a_setting_that_cannot_work_is_named() {
        let settings = settings();
        assert!(settings.check().is_ok());
        let why = |settings: Settings| settings.check().unwrap_err().to_string();
        let empty = Settings { most_bytes: 0, ..settings.clone() };
        assert!(why(empty).starts_with("`most_bytes` is 0"));
    }
}
