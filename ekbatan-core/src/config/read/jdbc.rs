//! Translates JDBC addresses.
//!
//! The protocol before `://` selects the dialect. The modes of JDBC drivers for several hosts
//! (`replication:`, `loadbalance:`, `aurora:`, `aws:`) are dropped. The rules reject an address
//! that names more than one host.

use std::path::PathBuf;

use crate::config::address::{decoded, encoded, parameters};
use crate::config::data_source::TlsMode;
use crate::config::parameters::concerns_encryption;

/// The settings in a JDBC address.
#[derive(Debug, Default)]
pub(super) struct Translated {
    pub(super) url: String,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) tls_mode: Option<TlsMode>,
    pub(super) tls_root_cert: Option<PathBuf>,
    pub(super) application_name: Option<String>,
    /// The parameters that have no effect.
    pub(super) ignored: Vec<String>,
}

/// Translates an address, or returns the message of the problem.
pub(super) fn translate(text: &str) -> Result<Translated, String> {
    let Some(rest) = text.get(..5).filter(|s| s.eq_ignore_ascii_case("jdbc:")).map(|_| &text[5..])
    else {
        return Err(
            "a JDBC address begins with `jdbc:`; put any other address under `url`".to_owned()
        );
    };
    let (protocol, rest) = rest.split_once(':').unwrap_or((rest, ""));
    let scheme = match protocol.to_ascii_lowercase().as_str() {
        "sqlite" if rest.is_empty() => {
            return Err("name the file, as in `jdbc:sqlite:wallet.db`".to_owned());
        }
        "sqlite" => {
            return Ok(Translated { url: format!("sqlite:{rest}"), ..Translated::default() });
        }
        "postgresql" => "postgres",
        "mysql" => "mysql",
        "mariadb" => "mariadb",
        _ => {
            return Err(
                "expected jdbc:postgresql:, jdbc:mysql:, jdbc:mariadb: or jdbc:sqlite:".to_owned()
            );
        }
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut translated = Translated::default();
    let place = match rest.split_once("//") {
        // `jdbc:postgresql:shop` is a database on localhost.
        None => format!("localhost/{rest}"),
        Some((_, place)) if place.starts_with('/') => format!("localhost{place}"),
        Some((_, place)) => place.to_owned(),
    };
    // Connector/J accepts a login before the host.
    let end = place.find('/').unwrap_or(place.len());
    let place = match place[..end].rsplit_once('@') {
        Some((login, hosts)) => format!("{login}@{hosts}{}", &place[end..]),
        None => place,
    };
    if place.contains(['(', '=']) {
        return Err("write the host as HOST:PORT, and everything else after a `?`".to_owned());
    }
    let mut kept = Vec::new();
    for (name, value) in parameters(query) {
        match name.to_ascii_lowercase().as_str() {
            "user" => translated.username = Some(decoded(value)),
            "password" => translated.password = Some(decoded(value)),
            "sslmode" => {
                translated.tls_mode = Some(tls_mode(value).ok_or_else(|| {
                    format!("`{value}` is not an sslmode; expected disable, prefer, require, verify-ca or verify-full")
                })?);
            }
            // With `ssl` alone, PostgreSQL's driver verifies the certificate; the others do not.
            "ssl" | "usessl" => {
                let strictest =
                    if scheme == "postgres" { TlsMode::VerifyFull } else { TlsMode::Require };
                let mode =
                    if value.eq_ignore_ascii_case("false") { TlsMode::Disable } else { strictest };
                translated.tls_mode.get_or_insert(mode);
            }
            "sslrootcert" | "serversslcert" => {
                translated.tls_root_cert = Some(decoded(value).into())
            }
            "applicationname" if scheme == "postgres" => {
                translated.application_name =
                    Some(decoded(value)).filter(|name| !name.trim().is_empty());
            }
            "currentschema" if scheme == "postgres" => {
                kept.push(format!("options[search_path]={}", encoded(&decoded(value))));
            }
            // Report only well-formed names: another text may be a misplaced password.
            plain if plain.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) => {
                if concerns_encryption(plain) {
                    return Err(format!(
                        "has the parameter `{name}`, which has no effect; remove it, and write `tls-mode` and `tls-root-cert`"
                    ));
                }
                translated.ignored.push(name.to_owned());
            }
            _ => return Err("a parameter after the `?` has a malformed name".to_owned()),
        }
    }
    translated.url = format!("{scheme}://{place}");
    if !kept.is_empty() {
        translated.url = format!("{}?{}", translated.url, kept.join("&"));
    }
    Ok(translated)
}

/// The mode, in the words of pgjdbc, Connector/J and MariaDB's connector.
fn tls_mode(word: &str) -> Option<TlsMode> {
    Some(match word.to_ascii_lowercase().replace('_', "-").as_str() {
        "disable" | "disabled" => TlsMode::Disable,
        "allow" | "prefer" | "preferred" => TlsMode::Prefer,
        "require" | "required" | "trust" => TlsMode::Require,
        "verify-ca" => TlsMode::VerifyCa,
        "verify-full" | "verify-identity" => TlsMode::VerifyFull,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaviour_62_multi_host_and_aurora_addresses_keep_their_dialect() {
        for (jdbc, url) in [
            ("jdbc:postgresql://host:5432/db", "postgres://host:5432/db"),
            ("jdbc:postgresql://a,b:5433/mysql", "postgres://a,b:5433/mysql"),
            ("jdbc:postgresql:db", "postgres://localhost/db"),
            ("jdbc:postgresql:///db", "postgres://localhost/db"),
            ("jdbc:mysql://postgres:3306/db", "mysql://postgres:3306/db"),
            ("jdbc:mysql:replication://a,b/db", "mysql://a,b/db"),
            ("jdbc:mysql:loadbalance://a,b/db", "mysql://a,b/db"),
            ("jdbc:mysql:aws://cluster/db", "mysql://cluster/db"),
            ("jdbc:mariadb:aurora://cluster/mysql", "mariadb://cluster/mysql"),
            ("jdbc:mariadb://u:p@host/db", "mariadb://u:p@host/db"),
            ("jdbc:sqlite:/tmp/wallet.db", "sqlite:/tmp/wallet.db"),
            ("JDBC:PostgreSQL://host/db", "postgres://host/db"),
        ] {
            assert_eq!(translate(jdbc).unwrap().url, url, "{jdbc}");
        }
        for bad in [
            "postgres://host/db",
            "jdbc:",
            "jdbc:oracle:thin:@x",
            "jdbc:sqlite:",
            "jdb",
            "jdbcé",
            "jdbc:mysql://(host=h,port=1)/d",
            "jdbc:mysql://address=(host=h)/d",
            "jdbc:mysql://h/d?a:b",
        ] {
            assert!(translate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn parameters_become_settings_or_are_reported() {
        let t = translate(
            "jdbc:postgresql://h/db?user=app&password=x&sslmode=verify-ca&sslrootcert=/ca.pem&reWriteBatchedInserts=true&currentSchema=a b",
        )
        .unwrap();
        assert_eq!(t.url, "postgres://h/db?options[search_path]=a%20b");
        assert_eq!((t.username.as_deref(), t.password.as_deref()), (Some("app"), Some("x")));
        assert_eq!(t.tls_mode, Some(TlsMode::VerifyCa));
        assert_eq!(t.tls_root_cert, Some("/ca.pem".into()));
        assert_eq!(t.ignored, ["reWriteBatchedInserts"]);

        let mode = |url: &str| translate(url).unwrap().tls_mode;
        assert_eq!(mode("jdbc:postgresql://h/db?ssl=true"), Some(TlsMode::VerifyFull));
        assert_eq!(mode("jdbc:mysql://h/db?sslMode=VERIFY_IDENTITY"), Some(TlsMode::VerifyFull));
        assert_eq!(mode("jdbc:mysql://h/db?useSSL=false"), Some(TlsMode::Disable));
        assert_eq!(mode("jdbc:mariadb://h/db?sslMode=trust"), Some(TlsMode::Require));
        assert!(translate("jdbc:mysql://h/db?sslMode=perhaps").is_err());
    }
}
