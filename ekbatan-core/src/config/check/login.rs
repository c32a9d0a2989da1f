//! The rules for users and passwords.

use crate::config::address::Parts;
use crate::config::data_source::DataSourceConfig;
use crate::config::findings::Findings;
use crate::config::key_path::KeyPath;

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
