//! The parameters of an address that have an effect, by database.
//!
//! The driver of MySQL drops others without a word, and that of PostgreSQL logs them with their
//! values.

#[cfg(any(feature = "postgres", feature = "mysql"))]
use std::path::PathBuf;

use super::address::{Parts, decoded, parameters};
#[cfg(any(feature = "postgres", feature = "mysql"))]
use super::data_source::DataSourceConfig;
use super::dialect::Dialect;

const OF_POSTGRES: &[&str] = &[
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

const OF_MYSQL: &[&str] = &[
    "sslmode",
    "ssl-mode",
    "sslca",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "charset",
    "collation",
    "socket",
];

const MODES_OF_POSTGRES: &[&str] = &["disable", "prefer", "require", "verify-ca", "verify-full"];

const MODES_OF_MYSQL: &[&str] =
    &["DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"];

/// The parameter that names a mode of encryption which does not exist, and the modes that do.
pub(super) fn unknown_mode(
    url: &str,
    dialect: Option<Dialect>,
) -> Option<(&'static str, &'static [&'static str])> {
    let (modes, also) = match dialect? {
        // The drivers accept `allow`, which protects no better than `disable`.
        Dialect::Postgres => (MODES_OF_POSTGRES, Some("allow")),
        Dialect::MySql | Dialect::MariaDb => (MODES_OF_MYSQL, None),
        Dialect::Sqlite => return None,
    };
    let exists = |mode: &str| {
        modes.iter().copied().chain(also).any(|known| known.eq_ignore_ascii_case(mode))
    };
    // The drivers ignore white space at the end, and what follows a `#`.
    let query = Parts::of(url.trim_end()).query.split('#').next().unwrap_or_default();
    parameters(query).find_map(|(name, mode)| {
        let name = ["sslmode", "ssl-mode"].into_iter().find(|of| *of == decoded(name))?;
        (!exists(&decoded(mode))).then_some((name, modes))
    })
}

/// Whether the address gives a mode of encryption to the driver of PostgreSQL.
#[cfg(feature = "postgres")]
pub(crate) fn names_tls_mode(url: &str) -> bool {
    parameters(Parts::opened(url).query)
        .any(|(name, _)| ["sslmode", "ssl-mode"].contains(&decoded(name).as_str()))
}

/// The files of certificates and keys that the address and the keys beside it name.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn certificate_files(config: &DataSourceConfig) -> Vec<PathBuf> {
    const NAMES: [&str; 8] = [
        "sslrootcert",
        "ssl-root-cert",
        "sslca",
        "ssl-ca",
        "sslcert",
        "ssl-cert",
        "sslkey",
        "ssl-key",
    ];
    let in_address = parameters(Parts::of(&config.url).query)
        .filter(|(name, _)| NAMES.contains(&decoded(name).as_str()))
        .map(|(_, file)| decoded(file).into());
    config.tls_root_cert.iter().cloned().chain(in_address).collect()
}

/// The names of the parameters that the driver would drop. SQLite refuses them itself.
pub(super) fn without_effect(url: &str, dialect: Option<Dialect>) -> Vec<String> {
    let names = parameters(Parts::of(url).query).map(|(name, _)| decoded(name));
    names.filter(|name| !has_effect(name, dialect)).collect()
}

/// The address without the parameters that the driver would drop.
pub(crate) fn with_effect_only(url: &str, dialect: Dialect) -> String {
    let Some((place, query)) = url.split_once('?') else { return url.to_owned() };
    let name = |pair: &str| decoded(pair.split('=').next().unwrap_or_default());
    let kept: Vec<&str> =
        query.split('&').filter(|pair| has_effect(&name(pair), Some(dialect))).collect();
    if kept.is_empty() { place.to_owned() } else { format!("{place}?{}", kept.join("&")) }
}

fn has_effect(name: &str, dialect: Option<Dialect>) -> bool {
    match dialect {
        Some(Dialect::Postgres) => OF_POSTGRES.contains(&name) || name.starts_with("options["),
        Some(Dialect::MySql | Dialect::MariaDb) => OF_MYSQL.contains(&name),
        Some(Dialect::Sqlite) | None => true,
    }
}

/// The parameter of a primary in PostgreSQL that its locks cannot take over: their driver knows no certificates of
/// clients, and counts a host or a port in a parameter beside those before the path.
pub(super) fn not_for_locks(parts: &Parts<'_>) -> Option<String> {
    const CERTIFICATES: [&str; 4] = ["sslcert", "ssl-cert", "sslkey", "ssl-key"];
    const SERVER: [&str; 3] = ["host", "hostaddr", "port"];
    let has_host = !parts.hosts.is_empty();
    let mut names = parameters(parts.query).map(|(name, _)| decoded(name));
    names.find(|name| {
        CERTIFICATES.contains(&name.as_str()) || has_host && SERVER.contains(&name.as_str())
    })
}

/// Whether connections may be less safe without the parameter.
pub(super) fn concerns_encryption(name: &str) -> bool {
    let plain = name.to_ascii_lowercase();
    ["ssl", "tls", "cert"].iter().any(|word| plain.contains(word))
}

/// Whether messages may show this name. Another text may be a misplaced password.
pub(super) fn is_name(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-[]".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parameters_with_an_effect_are_left() {
        for (url, left) in [
            ("postgres://h/d", "postgres://h/d"),
            ("postgres://h/d?a=b", "postgres://h/d"),
            (
                "postgres://h/d?sslpassword=s3cret&ssl%6Dode=require&",
                "postgres://h/d?ssl%6Dode=require",
            ),
            ("postgres://h/d?options[search_path]=a&b", "postgres://h/d?options[search_path]=a"),
        ] {
            assert_eq!(with_effect_only(url, Dialect::Postgres), left);
        }
    }
}
