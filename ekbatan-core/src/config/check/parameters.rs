//! The rules for the parameters of an address.

use crate::config::dialect::Dialect;
use crate::config::parameters::{concerns_encryption, is_name, unknown_mode, without_effect};

/// The parameters that give a login, where a driver reads one.
const LOGIN: [&str; 3] = ["user", "username", "password"];

/// The message about a parameter that would be dropped although connections are less safe without
/// it, or do not work. The others are listed as without effect.
pub(super) fn problem(url: &str, dialect: Option<Dialect>) -> Option<String> {
    without_effect(url, dialect).into_iter().find_map(|name| {
        if !is_name(&name) {
            Some("has a parameter with a malformed name".to_owned())
        } else if concerns_encryption(&name) {
            Some(format!(
                "has the parameter `{name}`, which has no effect; remove it, and write `tls-mode` and `tls-root-cert`"
            ))
        } else if LOGIN.iter().any(|of| of.eq_ignore_ascii_case(&name)) {
            Some(format!(
                "has the parameter `{name}`, which has no effect; remove it, and write `username` and `password`"
            ))
        } else {
            None
        }
    })
}

/// The message about a mode of encryption that does not exist.
pub(super) fn mode_problem(url: &str, dialect: Option<Dialect>) -> Option<String> {
    let (name, modes) = unknown_mode(url, dialect)?;
    let modes = modes.join(", ");
    Some(format!(
        "names a mode in `{name}` that does not exist; write one of {modes}, or the key `tls-mode`"
    ))
}
