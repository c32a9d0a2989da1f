//! The names of environment variables as key paths.
//!
//! A name is `EKBATAN_` and the steps of the path, joined by `_`. The words of each step are
//! matched against the known keys, ignoring case and separators. If two keys match, the longer
//! one wins. An entry of a list is named by its index, from 0. A slot is a known one, or one that
//! a file names; any other name of a slot must end in `CONFIG`.
//!
//! A name that matches no key is a problem, except for the names of the test kit.

use figment::value::Value;

use super::tree::find;
use crate::config::key_path::KeyPath;
use crate::config::keys::{self, Key, Kind, ROOT, SLOTS, of_slot};
use crate::config::spelling::{nearest, same_key};

/// The prefix of the variables that set keys.
pub(super) const PREFIX: &str = "EKBATAN_";

/// What the test kit starts.
const SERVERS: [&str; 11] = [
    "POSTGRES",
    "MYSQL",
    "MARIADB",
    "REDIS",
    "ETCD",
    "FERRETDB",
    "AEROSPIKE",
    "HBASE",
    "NATS",
    "RABBITMQ",
    "KAFKA",
];

/// Variables of the test kit share the prefix and set no key.
fn belongs_to_the_test_kit(name: &str) -> bool {
    name.starts_with("EKBATAN_TEST_")
        || SERVERS.iter().any(|server| name == format!("EKBATAN_{server}_BIN"))
}

/// The key path of a variable's name; `None` if the variable sets no key.
pub(super) fn path_of(name: &str, merged: Option<&Value>) -> Option<Result<KeyPath, String>> {
    let words = name.strip_prefix(PREFIX)?;
    if belongs_to_the_test_kit(name) {
        return None;
    }
    let words: Vec<&str> = words.split('_').filter(|word| !word.is_empty()).collect();
    let mut search = Search { merged, deepest: None, refused: None };
    let found = search.kind(&Kind::Section(ROOT), &words, KeyPath::root());
    Some(found.ok_or_else(|| search.explain()))
}

/// The longest match so far: its path, the words that are left, and the keys that exist there.
struct Deepest {
    at: KeyPath,
    left: String,
    known: Vec<String>,
}

struct Search<'a> {
    merged: Option<&'a Value>,
    deepest: Option<Deepest>,
    /// The sentence of a refused key that the name begins with.
    refused: Option<String>,
}

impl Search<'_> {
    fn kind(&mut self, kind: &Kind, words: &[&str], at: KeyPath) -> Option<KeyPath> {
        match kind {
            Kind::Section(keys) => self.section(keys, words, at),
            Kind::List(keys) => {
                let index = words.first().and_then(|word| word.parse().ok());
                match index {
                    Some(index) => self.section(keys, &words[1..], at.index(index)),
                    None => self.stuck(at, words, ["an index, from 0".to_owned()]),
                }
            }
            Kind::Slots => self.slots(words, at),
            Kind::Refused(sentence) => {
                self.refused = Some(format!("sets {at}, but {sentence}"));
                None
            }
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
        self.stuck(at, words, keys::names(keys).map(str::to_owned))
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
                    name => keys::slot_name(&format!("{name}-config")),
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
        if let Some(sentence) = &self.refused {
            return sentence.clone();
        }
        let Some(Deepest { at, left, known }) = &self.deepest else {
            return "matches no key".to_owned();
        };
        if left.is_empty() {
            return format!("stops at {at}, which has keys of its own: {}", known.join(", "));
        }
        if known.is_empty() {
            return format!("continues with {left} after {at}, which is a single value");
        }
        match nearest(left, known.iter().map(String::as_str)) {
            Some(near) => {
                format!("matches no key: {at} has no {left}; did you mean {}?", shouted(near))
            }
            None => {
                format!("matches no key: {at} has no {left}; its keys are {}", known.join(", "))
            }
        }
    }
}

/// The key as it is written in the name of a variable.
fn shouted(key: &str) -> String {
    key.replace('-', "_").to_uppercase()
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
            ("REPORTS_2_CONFIG_URL", "reports2-config.url"),
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
    }

    #[test]
    fn a_name_that_matches_no_key_shows_the_longest_match() {
        assert_eq!(
            path("EKBATAN_CONFIGS_PRIMARY_CONFIG_PASSWROD"),
            "matches no key: ekbatan.configs.primary-config has no PASSWROD; did you mean PASSWORD?"
        );
        assert!(path("EKBATAN_SHARDING_GROUPS_FIRST_NAME").contains("an index, from 0"));
        assert!(path("EKBATAN_SHARDING").contains("has keys of its own: default-shard"));
        assert!(path("EKBATAN_NAMESPACE_X").contains("which is a single value"));
        assert!(path("EKBATAN_").contains("has keys of its own"));
    }

    #[test]
    fn a_name_of_a_refused_key_has_its_sentence() {
        assert_eq!(
            path("EKBATAN_JOBS_HEARTBEAT_INTERVAL"),
            "sets ekbatan.jobs.heartbeat-interval, but a node renews its lease by itself; remove the key, `lease` says when others take over"
        );
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
}
