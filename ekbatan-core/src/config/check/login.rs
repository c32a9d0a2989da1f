//! The rules for users and passwords.

use crate::config::address::Parts;
use crate::config::data_source::DataSourceConfig;
use crate::config::findings::Findings;
use crate::config::key_path::KeyPath;

/// The problem of an address whose login ends early. What precedes the end may stand in the place of a
/// port, so the message names no text.
pub(super) fn cut_off(parts: &Parts<'_>) -> Option<&'static str> {
    if parts.has_cut_login() {
        Some(
            "has a `/`, `?` or `#` within the login, or an `@` behind it; percent-encode these characters, or give `username` and `password`",
        )
    } else if parts.no_port().is_some() {
        Some("has a port that is no number from 1 to 65535")
    } else {
        None
    }
}

/// An address and the keys beside it must not name different users or two passwords.
pub(super) fn check(
    config: &DataSourceConfig,
    parts: &Parts<'_>,
    at: &KeyPath,
    findings: &mut Findings,
) {
    if let Some(username) = &config.username {
        if username.trim().is_empty() {
            findings.add(&at.key("username"), "is blank; give the user, or remove the key");
        } else if let Some(inside) = parts.user.as_ref().filter(|inside| *inside != username) {
            let message = format!("the address contains the user {inside:?}; keep one of the two");
            findings.add_value(&at.key("username"), username, message);
        }
    }
    if config.password.is_some() && parts.has_password {
        let message = "the address also contains a password; keep one of the two";
        findings.add(&at.key("password"), message);
    }
}
