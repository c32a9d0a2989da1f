//! Where the cluster is, and how to log in.

use std::path::PathBuf;
use std::time::Duration;

use ekbatan_relay::__private::ends_in_password;
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
    /// The servers, or why the address cannot be used. It may contain a password then, so it is not kept.
    pub(crate) servers: Result<String, &'static str>,
    pub(crate) login: Option<(KafkaLogin, String, String)>,
    pub(crate) tls: bool,
    pub(crate) root_certificate: Option<PathBuf>,
    pub(crate) most_bytes: usize,
    pub(crate) ack_timeout: Duration,
}

impl Settings {
    /// Fails if a setting cannot work.
    pub(crate) fn check(&self) -> Result<(), KafkaError> {
        self.bootstrap_servers()?;
        if self.most_bytes == 0 {
            return Err(refused("most_bytes", "is 0, so nothing could be sent; give at least 1"));
        }
        Ok(())
    }

    /// Reads `kafka://HOST:PORT,HOST:PORT`; the scheme may be missing.
    pub(crate) fn servers(url: &str) -> Result<String, &'static str> {
        let servers = url.trim_start_matches("kafka://").trim_end_matches('/');
        if servers.contains('@') {
            return Err(
                "has a login, which is not read there; give `username` and `password` beside it",
            );
        }
        if servers.split(',').any(|server| ends_in_password(server.trim())) {
            return Err(
                "has a server whose port is no number; write `kafka://HOST:PORT,HOST:PORT`",
            );
        }
        Ok(servers.to_owned())
    }

    fn bootstrap_servers(&self) -> Result<&str, KafkaError> {
        self.servers.as_deref().map_err(|why| refused("url", why))
    }

    /// The servers, unless the address may contain a password.
    pub(crate) fn shown(&self) -> &str {
        self.servers.as_deref().unwrap_or("(not shown)")
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
        let connecting = Kafka::builder(self.bootstrap_servers()?)
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

fn refused(setting: &'static str, why: &str) -> KafkaError {
    KafkaError::Setting { setting, why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            servers: Ok("a:9092".to_owned()),
            login: None,
            tls: false,
            root_certificate: None,
            most_bytes: 1,
            ack_timeout: Duration::from_secs(1),
        }
    }

    fn refusal(url: &str) -> String {
        let settings = Settings { servers: Settings::servers(url), ..settings() };
        format!("{} {}", settings.check().unwrap_err(), settings.shown())
    }

    #[test]
    fn servers_are_read_from_an_address() {
        for url in ["kafka://a:9092,b:9092/", "a:9092,b:9092"] {
            assert_eq!(Settings::servers(url), Ok("a:9092,b:9092".to_owned()));
        }
        assert_eq!(Settings::servers("kafka://[::1]:9092"), Ok("[::1]:9092".to_owned()));
    }

    #[test]
    fn a_login_in_the_address_is_refused_and_not_shown() {
        for url in ["kafka://me:se,c@ret@a:9092", "kafka://me:se,c@ret"] {
            let refused = refusal(url);
            assert!(refused.starts_with("`url` has a login"), "{refused}");
            assert!(!refused.contains("ret") && refused.ends_with("(not shown)"), "{refused}");
        }
    }

    #[test]
    fn a_password_in_the_place_of_the_port_is_refused_and_not_shown() {
        for url in ["kafka://me:secret", "me:secret", "kafka://a:9092,me:secret/"] {
            let refused = refusal(url);
            assert!(refused.starts_with("`url` has a server whose port is no number"), "{refused}");
            assert!(!refused.contains("secret") && refused.ends_with("(not shown)"), "{refused}");
        }
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
