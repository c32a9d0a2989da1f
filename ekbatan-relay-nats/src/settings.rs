//! Where the server is, how to log in, and which stream gets the messages.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::ConnectOptions;

use crate::error::NatsError;

/// The settings of a broker.
#[derive(Clone)]
pub(crate) struct Settings {
    /// Addresses, separated by commas.
    pub(crate) url: String,
    pub(crate) login: Login,
    pub(crate) root_certificate: Option<PathBuf>,
    pub(crate) requires_tls: bool,
    pub(crate) stream: String,
    /// The subjects of a stream that is created if it is not there.
    pub(crate) create: Option<Vec<String>>,
    /// How many servers keep a stream that is created.
    pub(crate) replicas: usize,
    pub(crate) ack_timeout: Duration,
}

/// How to log in.
#[derive(Clone)]
pub(crate) enum Login {
    /// By what the address says.
    ByAddress,
    Password {
        user: String,
        password: String,
    },
    CredentialsFile(PathBuf),
}

impl Settings {
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.url.split(',').map(|address| address.trim().to_owned()).collect()
    }

    /// The addresses without their logins.
    pub(crate) fn shown(&self) -> String {
        let without_login = |address: String| match address.split_once("://") {
            Some((scheme, rest)) => {
                let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
                format!("{scheme}://{host}")
            }
            None => address.rsplit_once('@').map_or(address.clone(), |(_, host)| host.to_owned()),
        };
        self.addresses().into_iter().map(without_login).collect::<Vec<_>>().join(",")
    }

    /// Without encryption the root certificate would have no effect.
    fn encrypts(&self) -> bool {
        self.requires_tls || self.root_certificate.is_some()
    }

    pub(crate) async fn options(&self) -> Result<ConnectOptions, NatsError> {
        let options = ConnectOptions::new()
            .name("ekbatan")
            .connection_timeout(self.ack_timeout)
            .request_timeout(Some(self.ack_timeout))
            .require_tls(self.encrypts())
            // A client that connects again by itself sends what it has queued. That may be much later,
            // when another node has sent it and more. So it tries each address once; it has no setting
            // for less. Then it is over.
            .max_reconnects(self.addresses().len());
        let options = match &self.login {
            Login::ByAddress => options,
            Login::Password { user, password } => {
                options.user_and_password(user.clone(), password.clone())
            }
            Login::CredentialsFile(file) => {
                let unreadable =
                    |source| NatsError::File { file: file.display().to_string(), source };
                options.credentials_file(file).await.map_err(unreadable)?
            }
        };
        Ok(match &self.root_certificate {
            Some(file) => options.add_root_certificates(file.clone()),
            None => options,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> Settings {
        Settings {
            url: url.to_owned(),
            login: Login::ByAddress,
            root_certificate: None,
            requires_tls: false,
            stream: "s".to_owned(),
            create: None,
            replicas: 1,
            ack_timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn a_root_certificate_encrypts() {
        assert!(!settings("nats://a").encrypts());
        let root_certificate = Some("ca.pem".into());
        assert!(Settings { root_certificate, ..settings("nats://a") }.encrypts());
        assert!(Settings { requires_tls: true, ..settings("nats://a") }.encrypts());
    }

    #[test]
    fn no_login_is_shown() {
        let settings = settings("nats://alice:secret@a:4222, b:4222,bob:word@c");
        assert_eq!(settings.shown(), "nats://a:4222,b:4222,c");
    }
}
