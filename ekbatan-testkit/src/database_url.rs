//! The URL of a database, split so that one part can be replaced.
//!
//! Invariants: the other parts keep every byte.

use std::fmt;
use std::str::FromStr;

/// `scheme://login@address/database?options`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DatabaseUrl {
    scheme: String,
    login: Option<String>,
    address: String,
    database: Option<String>,
    options: Option<String>,
}

/// The text is not the URL of a database server.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a database URL; write `scheme://user@host:port/database`")]
pub(crate) struct NotADatabaseUrl(String);

impl DatabaseUrl {
    /// The URL of a database without a password and options, and optionally without a
    /// user.
    pub(crate) fn new(
        scheme: &str,
        user: Option<&str>,
        address: impl fmt::Display,
        database: &str,
    ) -> Self {
        Self {
            scheme: scheme.to_owned(),
            login: user.map(str::to_owned),
            address: address.to_string(),
            database: Some(database.to_owned()),
            options: None,
        }
    }

    /// The port, if the URL names one.
    pub(crate) fn port(&self) -> Option<u16> {
        // The text after the last colon of `[::1]` is not a number.
        self.address.rsplit_once(':')?.1.parse().ok()
    }

    /// The same database at another host and port.
    pub(crate) fn with_address(mut self, address: impl fmt::Display) -> Self {
        self.address = address.to_string();
        self
    }

    /// Another database of the same server.
    pub(crate) fn with_database(mut self, database: &str) -> Self {
        self.database = Some(database.to_owned());
        self
    }
}

impl FromStr for DatabaseUrl {
    type Err = NotADatabaseUrl;

    fn from_str(text: &str) -> Result<Self, NotADatabaseUrl> {
        let (scheme, rest) = text
            .split_once("://")
            .filter(|(scheme, _)| !scheme.is_empty())
            .ok_or_else(|| NotADatabaseUrl(text.to_owned()))?;
        let (rest, options) = split_off(rest, '?');
        let (authority, database) = split_off(rest, '/');
        // A password may contain an `@`, a host may not.
        let (login, address) = match authority.rsplit_once('@') {
            Some((login, address)) => (Some(login.to_owned()), address),
            None => (None, authority),
        };
        Ok(Self {
            scheme: scheme.to_owned(),
            login,
            address: address.to_owned(),
            database,
            options,
        })
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}://", self.scheme)?;
        if let Some(login) = &self.login {
            write!(out, "{login}@")?;
        }
        write!(out, "{}", self.address)?;
        if let Some(database) = &self.database {
            write!(out, "/{database}")?;
        }
        if let Some(options) = &self.options {
            write!(out, "?{options}")?;
        }
        Ok(())
    }
}

fn split_off(text: &str, at: char) -> (&str, Option<String>) {
    match text.split_once(at) {
        Some((before, after)) => (before, Some(after.to_owned())),
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> DatabaseUrl {
        text.parse().unwrap()
    }

    #[test]
    fn a_parsed_url_prints_unchanged() {
        for text in [
            "postgres://localhost",
            "postgres://localhost/",
            "postgresql://me:p@ss@db.example:5432/shop?sslmode=disable&x=/y",
            "postgres://[::1]:5432/shop",
            "postgres:///shop?host=/run",
        ] {
            assert_eq!(parse(text).to_string(), text);
        }
    }

    #[test]
    fn only_the_replaced_part_changes() {
        let url = parse("postgres://me:p@ss@db.example:5432/shop?a=b");
        assert_eq!(
            url.clone().with_address("127.0.0.1:7").to_string(),
            "postgres://me:p@ss@127.0.0.1:7/shop?a=b"
        );
        assert_eq!(
            url.with_database("test").to_string(),
            "postgres://me:p@ss@db.example:5432/test?a=b"
        );
        assert_eq!(
            parse("postgres://host").with_database("test").to_string(),
            "postgres://host/test"
        );
    }

    #[test]
    fn a_port_is_found_if_there_is_one() {
        for (text, port) in [
            ("redis://localhost", None),
            ("redis://:secret@localhost/0", None),
            ("redis://[::1]/0", None),
            ("redis://[::1]:7/0", Some(7)),
            ("redis://localhost:6380/0", Some(6380)),
        ] {
            assert_eq!(parse(text).port(), port, "{text}");
        }
    }

    #[test]
    fn other_text_is_rejected() {
        for text in ["", "localhost:5432", "sqlite:/tmp/db", "://host"] {
            assert!(text.parse::<DatabaseUrl>().is_err(), "{text}");
        }
    }
}
