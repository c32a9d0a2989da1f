//! Key paths in dotted form, as code writes them.

use crate::config::key_path::KeyPath;
use crate::config::keys::{self, Key, Kind, ROOT, of_slot};
use crate::config::spelling::same_key;

const ROOTLESS: &str = "a path begins with `ekbatan`";

/// The key path of a text such as `ekbatan.sharding.groups.0.name` or
/// `ekbatan.sharding.groups[0].name`.
pub(super) fn path_of(path: &str) -> Result<KeyPath, String> {
    let steps = path.split(['.', '[', ']']).filter(|step| !step.is_empty());
    let mut at = KeyPath::default();
    let mut kind = None;
    for step in steps {
        (at, kind) = match kind {
            None if at.0.is_empty() && same_key(step, "ekbatan") => {
                (KeyPath::root(), Some(Kind::Section(ROOT)))
            }
            None if at.0.is_empty() => return Err(ROOTLESS.to_owned()),
            None => return Err(format!("{at} is a single value, and has no `{step}`")),
            Some(Kind::List(keys)) => match step.parse() {
                Ok(index) => (at.index(index), Some(Kind::Section(keys))),
                Err(_) => return Err(format!("{at} is a list; `{step}` is not an index")),
            },
            Some(Kind::Slots) => {
                (at.key(keys::slot_name(step)), Some(Kind::Section(of_slot(step))))
            }
            Some(Kind::Section(keys)) => match keys::find(keys, step) {
                Some(Key { kind: Kind::Refused(sentence), .. }) => {
                    return Err((*sentence).to_owned());
                }
                Some(key) => (at.key(key.name), key.kind.container()),
                None => return Err(keys::unknown(step, keys)),
            },
            Some(_) => return Err(format!("{at} is a single value, and has no `{step}`")),
        };
    }
    if at.0.is_empty() { Err(ROOTLESS.to_owned()) } else { Ok(at) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_may_follow_a_dot_or_stand_in_brackets() {
        for text in ["ekbatan.sharding.groups.0.name", "ekbatan.sharding.groups[0].name"] {
            assert_eq!(path_of(text).unwrap().to_string(), "ekbatan.sharding.groups[0].name");
        }
        assert_eq!(
            path_of("ekbatan.configs.lockConfig.jdbcUrl").unwrap().to_string(),
            "ekbatan.configs.lock-config.jdbc-url"
        );
        for bad in
            ["", "namespace", "ekbatan.namespace.x", "ekbatan.sharding.groups.x", "ekbatan.nam"]
        {
            assert!(path_of(bad).is_err(), "{bad}");
        }
    }
}
