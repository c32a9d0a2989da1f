//! Variables of the environment as keys.
//!
//! The rule: `EKBATAN_`, then the steps of the path, joined by `_`. The words of a step are
//! held against the known keys without regard to case and separators; where two keys fit,
//! the longer one is meant. An entry of a list is named by its position, from 0. A slot is
//! one of the known ones, or one that a file names; any other has to end in `CONFIG`.
//!
//! A name that fits nothing is a problem, except for the test kit's own.

use figment::value::Value;

use super::address::shown;
use super::key_path::KeyPath;
use super::keys::{Key, Kind, ROOT, SLOTS, of_slot};
use super::layers::find;
use super::spelling::{nearest, same_key};

pub(super) const PREFIX: &str = "EKBATAN_";

/// Names that are not ours to judge.
fn belongs_to_the_test_kit(name: &str) -> bool {
    name.starts_with("EKBATAN_TEST_")
        || ["POSTGRES", "MYSQL", "MARIADB", "REDIS"]
            .iter()
            .any(|server| name == format!("EKBATAN_{server}_BIN"))
}

/// The path that a variable's name means; none if it is not for us.
pub(super) fn path_of(name: &str, merged: Option<&Value>) -> Option<Result<KeyPath, String>> {
    let words = name.strip_prefix(PREFIX)?;
    if belongs_to_the_test_kit(name) {
        return None;
    }
    let words: Vec<&str> = words.split('_').filter(|word| !word.is_empty()).collect();
    let mut search = Search { merged, deepest: None };
    let found = search.kind(&Kind::Section(ROOT), &words, KeyPath::root());
    Some(found.ok_or_else(|| search.explain()))
}

/// The furthest that a name led: where, which words were left, and what could stand there.
struct Deepest {
    at: KeyPath,
    left: String,
    known: Vec<String>,
}

struct Search<'a> {
    merged: Option<&'a Value>,
    deepest: Option<Deepest>,
}

impl Search<'_> {
    fn kind(&mut self, kind: &Kind, words: &[&str], at: KeyPath) -> Option<KeyPath> {
        match kind {
            Kind::Section(keys) => self.section(keys, words, at),
            Kind::List(keys) => {
                let index = words.first().and_then(|word| word.parse().ok());
                match index {
                    Some(index) => self.section(keys, &words[1..], at.index(index)),
                    None => self.stuck(at, words, ["a position, from 0".to_owned()]),
                }
            }
            Kind::Slots => self.slots(words, at),
            _ if words.is_empty() => Some(at),
            _ => self.stuck(at, words, []),
        }
    }

    fn section(&mut self, keys: &[Key], words: &[&str], at: KeyPath) -> Option<KeyPath> {
        for taken in (1..=words.len()).rev() {
            let word = words[..taken].concat();
            if let Some(key) = keys.iter().find(|key| same_key(key.name, &word)) {
                let found = self.kind(&key.kind, &words[taken..], at.key(key.name));
                if found.is_some() {
                    return found;
                }
            }
        }
        self.stuck(at, words, keys.iter().map(|key| key.name.to_owned()))
    }

    fn slots(&mut self, words: &[&str], at: KeyPath) -> Option<KeyPath> {
        let mut known: Vec<String> = SLOTS.iter().map(|(slot, _)| (*slot).to_owned()).collect();
        let here = self.merged.and_then(|root| find(root, at.0.get(1..)?));
        if let Some(Value::Dict(_, dict)) = here {
            known.extend(dict.keys().cloned());
        }
        for taken in (1..=words.len()).rev() {
            let word = words[..taken].concat();
            if let Some(slot) = known.iter().find(|slot| same_key(slot, &word)) {
                let found = self.section(of_slot(slot), &words[taken..], at.key(slot.clone()));
                if found.is_some() {
                    return found;
                }
            }
        }
        for taken in 1..=words.len() {
            let lower = words[..taken].join("-").to_lowercase();
            if let Some(name) = lower.strip_suffix("config") {
                let slot = match name.trim_end_matches('-') {
                    "" => continue,
                    name => format!("{name}-config"),
                };
                let found = self.section(of_slot(&slot), &words[taken..], at.key(slot));
                if found.is_some() {
                    return found;
                }
            }
        }
        self.stuck(at, words, known)
    }

    fn stuck(
        &mut self,
        at: KeyPath,
        words: &[&str],
        known: impl IntoIterator<Item = String>,
    ) -> Option<KeyPath> {
        let deeper = self.deepest.as_ref().is_none_or(|deepest| at.0.len() > deepest.at.0.len());
        if deeper {
            let known = known.into_iter().collect();
            self.deepest = Some(Deepest { at, left: words.join("_"), known });
        }
        None
    }

    fn explain(&self) -> String {
        let Some(Deepest { at, left, known }) = &self.deepest else {
            return "matches no key".to_owned();
        };
        if left.is_empty() {
            return format!("stops at {at}, which has keys of its own: {}", known.join(", "));
        }
        if known.is_empty() {
            return format!("goes on with {left} behind {at}, which is a single value");
        }
        match nearest(left, known.iter().map(String::as_str)) {
            Some(near) => {
                format!("matches no key: {at} has no {left}; did you mean {}?", shouted(near))
            }
            None => format!("matches no key: {at} has no {left}, but {}", known.join(", ")),
        }
    }
}

fn shouted(key: &str) -> String {
    key.replace('-', "_").to_uppercase()
}

/// The path that dots and positions name, as in `ekbatan.sharding.groups.0.name` or
/// `ekbatan.sharding.groups[0].name`.
pub(super) fn dotted(path: &str) -> Result<KeyPath, String> {
    let steps = path.split(['.', '[', ']']).filter(|step| !step.is_empty());
    let mut at = KeyPath::default();
    let mut kind = None;
    for step in steps {
        (at, kind) = match kind {
            None if at.0.is_empty() && same_key(step, "ekbatan") => {
                (KeyPath::root(), Some(Kind::Section(ROOT)))
            }
            None if at.0.is_empty() => return Err("a path begins with `ekbatan`".to_owned()),
            None => return Err(format!("{at} is a single value, and has no `{step}`")),
            Some(Kind::List(keys)) => match step.parse() {
                Ok(index) => (at.index(index), Some(Kind::Section(keys))),
                Err(_) => return Err(format!("{at} is a list; `{step}` is no position in it")),
            },
            Some(Kind::Slots) => {
                (at.key(super::layers::slot(step)), Some(Kind::Section(of_slot(step))))
            }
            Some(Kind::Section(keys)) => match super::keys::find(keys, step) {
                Some(key) => (at.key(key.name), key.kind.container()),
                None => return Err(unknown(step, keys)),
            },
            Some(_) => return Err(format!("{at} is a single value, and has no `{step}`")),
        };
    }
    if at.0.is_empty() { Err("a path begins with `ekbatan`".to_owned()) } else { Ok(at) }
}

/// What to say of a key that nobody knows.
pub(super) fn unknown(name: &str, keys: &[Key]) -> String {
    let name = &shown(name);
    match nearest(name, keys.iter().map(|key| key.name)) {
        Some(near) => format!("there is no key `{name}`; did you mean `{near}`?"),
        None => {
            let known: Vec<&str> = keys.iter().map(|key| key.name).collect();
            format!("there is no key `{name}`; known here are {}", known.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> String {
        match path_of(name, None) {
            None => "not ours".to_owned(),
            Some(Ok(path)) => path.to_string(),
            Some(Err(message)) => message,
        }
    }

    #[test]
    fn names_are_matched_without_regard_to_case_and_separators() {
        let base = "EKBATAN_SHARDING_GROUPS_0_MEMBERS_12_CONFIGS_";
        for (name, expected) in [
            ("PRIMARY_CONFIG_PASSWORD", "primary-config.password"),
            ("PRIMARYCONFIG_PASSWORD", "primary-config.password"),
            ("PRIMARY_CONFIG_JDBC_URL", "primary-config.jdbc-url"),
            ("PRIMARY_CONFIG_JDBCURL", "primary-config.jdbc-url"),
            ("PRIMARY_CONFIG_URL", "primary-config.url"),
            ("LOCKCONFIG_PASSWORD", "lock-config.password"),
            ("REPORTING_CONFIG_URL", "reporting-config.url"),
            ("NIGHT_REPORTS_CONFIG_JDBC_URL", "night-reports-config.jdbc-url"),
            ("REPORTINGCONFIG_MAXIMUM_POOL_SIZE", "reporting-config.maximum-pool-size"),
            ("primaryConfig_maximumPoolSize", "primary-config.maximum-pool-size"),
        ] {
            let expected = format!("ekbatan.sharding.groups[0].members[12].configs.{expected}");
            assert_eq!(path(&format!("{base}{name}")), expected);
        }
        assert_eq!(path("EKBATAN_NAMESPACE"), "ekbatan.namespace");
        assert_eq!(
            path("EKBATAN_CONFIGS_PRIMARY_CONFIG_URL"),
            "ekbatan.configs.primary-config.url"
        );
        assert_eq!(
            path("EKBATAN_SHARDING_DEFAULT_SHARD_GROUP"),
            "ekbatan.sharding.default-shard.group"
        );
        assert_eq!(
            path("EKBATAN_LOCAL_EVENT_HANDLER_HANDLING_ENABLED"),
            "ekbatan.local-event-handler.handling.enabled"
        );
        assert_eq!(
            path("EKBATAN_LOCAL_EVENT_HANDLER_HANDLING_BATCH_SIZE"),
            "ekbatan.local-event-handler.handling-batch-size"
        );
    }

    #[test]
    fn a_name_that_fits_nothing_says_how_far_it_led() {
        assert_eq!(
            path("EKBATAN_CONFIGS_PRIMARY_CONFIG_PASSWROD"),
            "matches no key: ekbatan.configs.primary-config has no PASSWROD; did you mean PASSWORD?"
        );
        assert!(path("EKBATAN_SHARDING_GROUPS_FIRST_NAME").contains("a position, from 0"));
        assert!(path("EKBATAN_SHARDING").contains("has keys of its own: default-shard"));
        assert!(path("EKBATAN_NAMESPACE_X").contains("which is a single value"));
        assert!(path("EKBATAN_").contains("has keys of its own"));
    }

    #[test]
    fn the_test_kits_own_names_are_left_alone() {
        for name in
            ["EKBATAN_TEST_POSTGRES_URL", "EKBATAN_POSTGRES_BIN", "EKBATAN_REDIS_BIN", "PATH"]
        {
            assert_eq!(path(name), "not ours");
        }
        assert_ne!(path("EKBATAN_ORACLE_BIN"), "not ours");
    }

    #[test]
    fn dotted_paths_take_both_ways_of_naming_a_position() {
        for text in ["ekbatan.sharding.groups.0.name", "ekbatan.sharding.groups[0].name"] {
            assert_eq!(dotted(text).unwrap().to_string(), "ekbatan.sharding.groups[0].name");
        }
        assert_eq!(
            dotted("ekbatan.configs.lockConfig.jdbcUrl").unwrap().to_string(),
            "ekbatan.configs.lock-config.jdbc-url"
        );
        for bad in
            ["", "namespace", "ekbatan.namespace.x", "ekbatan.sharding.groups.x", "ekbatan.nam"]
        {
            assert!(dotted(bad).is_err(), "{bad}");
        }
    }
}
