//! The login: that of the configuration, or that of the address.
//!
//! Invariants: parameters of the address about the login, such as `authSource`, apply to both. No error
//! contains a secret, also if a part of it stands in the place of a host or a port.

use ekbatan_core::config::{DataSourceConfig, ExposeSecret};
use ekbatan_lock::{BackendError, LockError};
use mongodb::options::ClientOptions;

/// Stands in the address for what the configuration gives.
const PLACEHOLDER: &str = "x";

/// The characters that are escaped within a user or a password.
const ESCAPED: [char; 7] = [':', '/', '?', '#', '[', ']', '@'];

pub(crate) struct Login {
    address: String,
    username: Option<String>,
    password: Option<String>,
}

impl Login {
    pub(crate) fn of(server: &DataSourceConfig) -> Result<Self, LockError> {
        let Some(parts) = Parts::of(&server.url) else {
            return Err(wrong(
                "the address of the locks does not begin with mongodb://; write \
                 mongodb://HOST:27017/DATABASE",
            ));
        };
        if parts.is_cut_off() {
            return Err(wrong(
                "the address of the locks has a login that ends early or has no end, or a port that is \
                 no number from 1 to 65535; end the login with `@` and percent-encode the characters \
                 `:/?#[]@%` within the user and the password, or give `username` and `password` beside \
                 the address",
            ));
        }
        let username = server.username.clone().filter(|name| !name.is_empty());
        let password = server.password.as_ref().map(|password| password.expose_secret().to_owned());
        let user = username.as_ref().map(|_| PLACEHOLDER).or(parts.user());
        let secret = password.as_ref().map(|_| PLACEHOLDER).or(parts.password());
        if user.is_none() && secret.is_some() {
            return Err(wrong(
                "a password is given for the locks and no user; give both, or none of them",
            ));
        }
        // Without a user in it, the driver leaves out `authSource` and refuses `authMechanism`.
        let address = parts.with_login(user, secret);
        Ok(Self { address, username, password })
    }

    /// The address for the driver, with placeholders for what the configuration gives.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Replaces the placeholders.
    pub(crate) fn apply_to(self, options: &mut ClientOptions) {
        if let Some(credential) = &mut options.credential {
            credential.username = self.username.or(credential.username.take());
            credential.password = self.password.or(credential.password.take());
        }
    }
}

fn wrong(message: &str) -> LockError {
    LockError::Start { source: BackendError::new(message) }
}

/// The parts of `scheme://user:password@hosts/path?parameters`.
struct Parts<'u> {
    scheme: &'u str,
    login: Option<&'u str>,
    hosts: &'u str,
    path: &'u str,
    parameters: &'u str,
}

impl<'u> Parts<'u> {
    fn of(url: &'u str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let (rest, parameters) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        Some(Self { scheme, login, hosts, path, parameters })
    }

    fn user(&self) -> Option<&'u str> {
        let login = self.login?;
        let user = login.split_once(':').map_or(login, |(user, _)| user);
        Some(user).filter(|user| !user.is_empty())
    }

    fn password(&self) -> Option<&'u str> {
        self.login?.split_once(':').map(|(_, password)| password)
    }

    /// Whether a character that is not escaped ends the login early, or nothing ends it. What follows
    /// then counts as a host, a port, a path or a parameter.
    fn is_cut_off(&self) -> bool {
        let is_escaped = |text: &str| {
            !text.contains(ESCAPED)
                && text.split('%').skip(1).all(|code| {
                    code.len() >= 2 && code.bytes().take(2).all(|digit| digit.is_ascii_hexdigit())
                })
        };
        let mut both = [self.user(), self.password()].into_iter().flatten();
        both.any(|text| !is_escaped(text))
            || self.path.contains('@')
            || self.hosts.split(',').any(has_wrong_port)
            || self.login.is_none()
                && self.parameters.split(['?', '&']).any(|it| self.ends_login(it))
    }

    /// Whether a parameter contains the end of a login. An `@` in a value need not be one, unless a
    /// database follows.
    fn ends_login(&self, parameter: &str) -> bool {
        match parameter.split_once('=') {
            Some((name, value)) if !name.contains('@') => {
                let after = value.split_once('@').map(|(_, after)| after);
                after.is_some_and(|after| self.path.is_empty() || after.contains('/'))
            }
            _ => parameter.contains('@'),
        }
    }

    fn with_login(&self, user: Option<&str>, password: Option<&str>) -> String {
        let Self { scheme, hosts, path, parameters, .. } = self;
        let password = password.map(|password| format!(":{password}")).unwrap_or_default();
        let login = user.map(|user| format!("{user}{password}@")).unwrap_or_default();
        format!("{scheme}://{login}{hosts}{path}{parameters}")
    }
}

/// The colons of an IPv6 address are within brackets.
fn has_wrong_port(host: &str) -> bool {
    let port = host.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.contains(']'));
    port.is_some_and(|port| port.parse::<u16>().map_or(true, |number| number == 0))
}

#[cfg(test)]
mod tests {
    use mongodb::options::{AuthMechanism, Credential};

    use super::*;

    fn config(url: &str, username: Option<&str>, password: Option<&str>) -> DataSourceConfig {
        let mut config = DataSourceConfig::new(url);
        config.username = username.map(str::to_owned);
        config.password = password.map(|password| password.to_owned().into());
        config
    }

    async fn credential(config: &DataSourceConfig) -> Option<Credential> {
        let login = Login::of(config).unwrap();
        let mut options = ClientOptions::parse(login.address()).await.unwrap();
        login.apply_to(&mut options);
        options.credential
    }

    #[tokio::test]
    async fn parameters_of_the_address_apply_to_a_login_beside_it() {
        let beside = async |url: &str| {
            let login = credential(&config(url, Some("app:@"), Some("se/cr%et"))).await.unwrap();
            assert_eq!(login.username.as_deref(), Some("app:@"), "{url}");
            assert_eq!(login.password.as_deref(), Some("se/cr%et"), "{url}");
            (login.source.unwrap(), login.mechanism)
        };
        let scram = |url: &'static str| beside(url);
        assert_eq!(scram("mongodb://a").await, ("admin".to_owned(), None));
        assert_eq!(scram("mongodb://a:1,b/shop").await, ("shop".to_owned(), None));
        assert_eq!(scram("mongodb://a/shop?authSource=users").await, ("users".to_owned(), None));
        assert_eq!(
            scram("mongodb://[::1]:1/shop?authMechanism=SCRAM-SHA-256").await,
            ("shop".to_owned(), Some(AuthMechanism::ScramSha256))
        );
        assert_eq!(
            scram("mongodb://a?authMechanism=SCRAM-SHA-1&authSource=users").await,
            ("users".to_owned(), Some(AuthMechanism::ScramSha1))
        );
    }

    #[tokio::test]
    async fn the_configuration_completes_the_login_of_the_address() {
        for (url, username, password) in [
            ("mongodb://u%40x:p%2Fq@a/d", None, None),
            ("mongodb://u%40x@a/d", None, Some("p/q")),
            ("mongodb://other:p%2Fq@a/d", Some("u@x"), None),
            ("mongodb://other:old@a/d", Some("u@x"), Some("p/q")),
        ] {
            let login = credential(&config(url, username, password)).await.unwrap();
            assert_eq!(login.username.as_deref(), Some("u@x"), "{url}");
            assert_eq!(login.password.as_deref(), Some("p/q"), "{url}");
        }
        let certificate = "mongodb://a/?authMechanism=MONGODB-X509&tls=true";
        let login = credential(&config(certificate, None, None)).await.unwrap();
        assert_eq!((login.username, login.password), (None, None));
        assert_eq!(credential(&config("mongodb://a/?appName=x@y", None, None)).await, None);
    }

    #[test]
    fn a_login_that_is_cut_off_is_refused_without_its_secret() {
        for url in [
            "mongodb://app:secret",
            "mongodb://app:secret/d",
            "mongodb://app:secret,b:27017/d?replicaSet=r",
            "mongodb://app:secret@x@a/d",
            "mongodb://app:secret:x@a/d",
            "mongodb://app:secret/x@a/d",
            "mongodb://app:12/secret@a",
            "mongodb://app:secret?x@a/d",
            "mongodb://app:12?secret@a/d",
            "mongodb://app:12?secret=x@a/d",
            "mongodb://app:secret#x@a/d",
            "mongodb://app:secret%@a/d",
            "mongodb://app:secret%x1@a/d",
            "mongodb://a:0/secret",
        ] {
            let error = Login::of(&config(url, None, None)).err().expect(url);
            let text = format!("{error} {error:?}");
            assert!(text.contains("percent-encode") && !text.contains("secret"), "{url}: {text}");
        }
        let error = Login::of(&config("mongodb:app:secret", None, None)).err().unwrap();
        let text = format!("{error} {error:?}");
        assert!(text.contains("mongodb://HOST") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn a_password_without_a_user_is_refused() {
        for (url, username, password) in [
            ("mongodb://a/d", None, Some("secret")),
            ("mongodb://a/d", Some(""), Some("secret")),
            ("mongodb://:secret@a/d", None, None),
        ] {
            let error = Login::of(&config(url, username, password)).err().expect(url);
            let text = format!("{error} {error:?}");
            assert!(text.contains("no user") && !text.contains("secret"), "{url}: {text}");
        }
    }
}
