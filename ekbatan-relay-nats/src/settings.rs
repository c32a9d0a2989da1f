//! Where the server is, how to log in, and which stream gets the messages.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::ConnectOptions;
use ekbatan_core::config::decoded;
use ekbatan_relay::__private::ends_in_password;

use crate::error::NatsError;

/// The settings of a broker.
#[derive(Clone)]
pub(crate) struct Settings {
    /// Addresses, separated by commas.
    pub(crate) url: String,
    /// `None`: by what the address says.
    pub(crate) login: Option<Login>,
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
    Password { user: String, password: String },
    Token(String),
    CredentialsFile(PathBuf),
}

impl Settings {
    /// The addresses of the servers. The client uses no login that stands in an address, but logs the address.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.url.split(',').map(|address| parts(address).address()).collect()
    }

    /// The addresses without their logins.
    pub(crate) fn shown(&self) -> String {
        if self.url.split(',').any(|address| ends_in_password(parts(address).host)) {
            return "(not shown)".to_owned();
        }
        self.addresses().join(",")
    }

    /// The login in the address. All servers of a cluster know the same users.
    fn login_in_address(&self) -> Result<Option<Login>, NatsError> {
        let logins: BTreeSet<&str> =
            self.url.split(',').filter_map(|address| parts(address).login).collect();
        let mut logins = logins.into_iter();
        let (login, another) = (logins.next(), logins.next());
        if another.is_some() {
            return Err(NatsError::SeveralLogins);
        }
        Ok(login.map(|login| match login.split_once(':') {
            Some((user, password)) => {
                Login::Password { user: decoded(user), password: decoded(password) }
            }
            None => Login::Token(decoded(login)),
        }))
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
        let login = match &self.login {
            None => self.login_in_address()?,
            login => login.clone(),
        };
        let options = match login {
            None => options,
            Some(Login::Password { user, password }) => options.user_and_password(user, password),
            Some(Login::Token(token)) => options.token(token),
            Some(Login::CredentialsFile(file)) => {
                let unreadable =
                    |source| NatsError::File { file: file.display().to_string(), source };
                options.credentials_file(&file).await.map_err(unreadable)?
            }
        };
        Ok(match &self.root_certificate {
            Some(file) => options.add_root_certificates(file.clone()),
            None => options,
        })
    }
}

/// The parts of the address of one server.
struct Parts<'a> {
    /// With `://`, or empty.
    scheme: &'a str,
    /// As it is written.
    login: Option<&'a str>,
    host: &'a str,
}

impl Parts<'_> {
    fn address(&self) -> String {
        format!("{}{}", self.scheme, self.host)
    }
}

fn parts(address: &str) -> Parts<'_> {
    let address = address.trim();
    let (scheme, rest) = address.split_at(address.find("://").map_or(0, |at| at + "://".len()));
    match rest.rsplit_once('@') {
        Some((login, host)) => Parts { scheme, login: Some(login), host },
        None => Parts { scheme, login: None, host: rest },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> Settings {
        Settings {
            url: url.to_owned(),
            login: None,
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
    fn no_login_is_shown_nor_given_to_the_client_with_the_address() {
        let settings = settings("nats://alice:secret@a:4222, b:4222,bob:word@c");
        assert_eq!(settings.shown(), "nats://a:4222,b:4222,c");
        assert_eq!(settings.addresses(), ["nats://a:4222", "b:4222", "c"]);
    }

    #[test]
    fn the_login_of_an_address_is_decoded() {
        let login = |url: &str| settings(url).login_in_address().unwrap();
        let of_alice = |login| match login {
            Some(Login::Password { user, password }) => {
                (user, password) == ("alice".to_owned(), "a:@,b".to_owned())
            }
            _ => false,
        };
        assert!(of_alice(login("nats://alice:a%3A%40%2Cb@a:4222")));
        assert!(of_alice(login("tls://a, nats://alice:a%3A%40%2Cb@b,alice:a%3A%40%2Cb@c")));
        assert!(
            matches!(login("nats://a%20token@a"), Some(Login::Token(token)) if token == "a token")
        );
        assert!(login("nats://a:4222").is_none());
        let several = settings("nats://alice:secret@a,nats://bob:word@b").login_in_address();
        let Err(error) = several else { panic!("two logins") };
        assert!(error.to_string().contains("different logins"), "{error}");
    }

    #[test]
    fn a_password_in_the_place_of_the_port_is_not_shown() {
        for url in ["nats://alice:secret", "alice:secret", "nats://a:4222,nats://alice:se,c@ret@b"]
        {
            assert_eq!(settings(url).shown(), "(not shown)", "{url}");
        }
    }
}
