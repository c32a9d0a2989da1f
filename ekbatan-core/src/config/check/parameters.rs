//! The rules for the parameters of an address.

use crate::config::dialect::Dialect;
use crate::config::parameters::{is_name, without_effect};

/// The message about a parameter that would be dropped although connections are less safe without
/// it, or do not work. The others are listed as without effect.
pub(super) fn problem(url: &str, dialect: Option<Dialect>) -> Option<String> {
    without_effect(url, dialect).into_iter().find_map(|name| {
        let plain = name.to_ascii_lowercase();
        if !is_name(&name) {
            Some("has a parameter with a malformed name".to_owned())
        } else if ["ssl", "tls", "cert"].iter().any(|word| plain.contains(word)) {
            Some(format!(
                "has the parameter `{name}`, which has no effect; remove it, and write `tls-mode` and `tls-root-cert`"
            ))
        } else if ["user", "username", "password"].contains(&plain.as_str()) {
            Some(format!(
                "has the parameter `{name}`, which has no effect; remove it, and write `username` and `password`"
            ))
        } else {
            None
        }
    })
}
