//! Where the server is, and how to log in.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ekbatan_relay::__private::ends_in_password;
use lapin::tcp::OwnedTLSConfig;
use lapin::uri::AMQPUri;

use crate::error::RabbitMqError;

/// The settings of a broker.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) url: String,
    pub(crate) login: Option<(String, String)>,
    pub(crate) requires_tls: bool,
    pub(crate) root_certificate: Option<PathBuf>,
    /// Empty for the default exchange.
    pub(crate) exchange: String,
    pub(crate) most_bytes: usize,
    pub(crate) ack_timeout: Duration,
}

impl Settings {
    /// The address without its login.
    pub(crate) fn shown(&self) -> String {
        let shown = self.scheme_and_rest().and_then(|(scheme, rest)| {
            let host = match rest.rsplit_once('@') {
                Some((_login, host)) => host,
                None if ends_in_password(rest) => return None,
                None => rest,
            };
            Some(format!("{scheme}://{host}"))
        });
        shown.unwrap_or_else(|| "(not shown)".to_owned())
    }

    /// The parts around `://`. Without them, any part of the address may be a password.
    fn scheme_and_rest(&self) -> Option<(&str, &str)> {
        let parts = self.url.split_once("://");
        parts.filter(|(scheme, _)| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()))
    }

    pub(crate) fn uri(&self) -> Result<AMQPUri, RabbitMqError> {
        let refused = |why| RabbitMqError::Address { address: self.shown(), why };
        // The client would print such an address.
        let Some((scheme, rest)) = self.scheme_and_rest() else {
            return Err(refused("has no scheme".to_owned()));
        };
        // Without encryption the root certificate would have no effect. The scheme decides on the usual port.
        let encrypts = self.requires_tls || self.root_certificate.is_some();
        let url = if encrypts && scheme.eq_ignore_ascii_case("amqp") {
            format!("amqps://{rest}")
        } else {
            self.url.clone()
        };
        let mut uri =
            AMQPUri::from_str(&url).map_err(|why| refused(format!("cannot be used ({why})")))?;
        // The client takes `localhost` for the address of IPv6.
        if let Some(address) = address_of_ipv6(&url) {
            uri.authority.host = address.to_owned();
        }
        if let Some((user, password)) = &self.login {
            uri.authority.userinfo.username.clone_from(user);
            uri.authority.userinfo.password.clone_from(password);
        }
        // A connection over which nothing comes is noticed.
        let heartbeat = self.ack_timeout.as_secs().clamp(1, 60);
        uri.query.heartbeat.get_or_insert(u16::try_from(heartbeat).unwrap_or(60));
        Ok(uri)
    }

    pub(crate) fn tls(&self) -> Result<OwnedTLSConfig, RabbitMqError> {
        let read = |file: &PathBuf| {
            let unreadable =
                |source| RabbitMqError::File { file: file.display().to_string(), source };
            std::fs::read_to_string(file).map_err(unreadable)
        };
        let cert_chain = self.root_certificate.as_ref().map(read).transpose()?;
        Ok(OwnedTLSConfig { identity: None, cert_chain })
    }
}

/// The address of IPv6 between the brackets of `amqp://USER:PASSWORD@[ADDRESS]:PORT/..`.
fn address_of_ipv6(url: &str) -> Option<&str> {
    let (_scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_login, host)| host);
    host.strip_prefix('[')?.split_once(']').map(|(address, _port)| address)
}

#[cfg(test)]
mod tests {
    use lapin::uri::AMQPScheme::{AMQP, AMQPS};

    use super::*;

    fn settings(url: &str) -> Settings {
        Settings {
            url: url.to_owned(),
            login: None,
            requires_tls: false,
            root_certificate: None,
            exchange: String::new(),
            most_bytes: 1,
            ack_timeout: Duration::from_secs(1),
        }
    }

    fn uri(url: &str, requires_tls: bool, root_certificate: Option<&str>) -> AMQPUri {
        let root_certificate = root_certificate.map(PathBuf::from);
        Settings { requires_tls, root_certificate, ..settings(url) }.uri().unwrap()
    }

    #[test]
    fn an_address_without_a_scheme_is_refused_and_not_shown() {
        for url in [
            "app:hunter2@rabbit:5672/%2f",
            "amqp:app:hunter2@rabbit",
            "amqp:/app:hunter2@rabbit",
            "app:hunter2@rabbit://5672",
            "app:hunter2://rabbit@5672",
            "hunter2",
        ] {
            let settings = settings(url);
            let refused = settings.uri().unwrap_err();
            let shown = format!("{refused} {refused:?} {}", settings.shown());
            assert!(shown.contains("(not shown) has no scheme; write amqp://HOST"), "{shown}");
            assert!(!shown.contains("hunter2"), "{shown}");
        }
        let refused = settings("http://app:hunter2@rabbit").uri().unwrap_err().to_string();
        assert!(refused.contains("http://rabbit") && !refused.contains("hunter2"), "{refused}");
    }

    #[test]
    fn a_password_in_the_place_of_the_port_is_not_shown() {
        for url in ["amqp://app:hunter2", "amqp://app:hun/ter2", "amqp://app:hunter2]?heartbeat=9"]
        {
            let settings = settings(url);
            let refused = settings.uri().unwrap_err();
            let shown = format!("{refused} {refused:?} {}", settings.shown());
            assert!(shown.contains("the address (not shown) cannot be used"), "{shown}");
            assert!(!shown.contains("hun") && !shown.contains("ter2"), "{shown}");
        }
        for url in
            ["amqp://h", "amqp://h:5672/%2f", "amqp://[::1]", "amqp://[::1]:5672", "http://h"]
        {
            assert_eq!(settings(url).shown(), url);
        }
    }

    #[test]
    fn a_root_certificate_encrypts() {
        for (url, requires_tls, certificate, scheme, port) in [
            ("amqp://h", false, None, AMQP, 5672),
            ("amqp://h", true, None, AMQPS, 5671),
            ("amqp://h", false, Some("ca.pem"), AMQPS, 5671),
            ("amqp://h:5672", true, None, AMQPS, 5672),
            ("amqps://h", false, None, AMQPS, 5671),
        ] {
            let uri = uri(url, requires_tls, certificate);
            assert_eq!((uri.scheme, uri.authority.port), (scheme, port), "{url}");
        }
    }

    #[test]
    fn the_host_is_the_one_of_the_address() {
        for (url, host, port) in [
            ("amqp://broker.example:5671/%2f", "broker.example", 5671),
            ("amqp://192.0.2.5", "192.0.2.5", 5672),
            ("amqp://user:secret@[2001:db8::5]:5673/%2f", "2001:db8::5", 5673),
            ("amqps://[::1]?heartbeat=9", "::1", 5671),
        ] {
            let authority = uri(url, false, None).authority;
            assert_eq!((&*authority.host, authority.port), (host, port), "{url}");
        }
    }
}
