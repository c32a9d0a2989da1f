//! Step 2: checks the rules that go beyond the shape of one value. [`EkbatanConfig::check`] and the
//! loader apply the same rules.
//!
//! [`sharding`] checks the shards against each other, [`slots`] the databases of one shard,
//! [`data_source`] one database, [`events`] and [`jobs`] the nodes, [`relays`] what they send, [`times`] bounds, [`locks`] a `lock-config`, [`login`] users and passwords, [`parameters`] those of an address, and [`tls`] encryption.
//!
//! Invariant: a rule adds nothing to a path that already has a problem.

mod data_source;
mod events;
mod jobs;
mod locks;
mod login;
mod parameters;
mod relays;
mod sharding;
mod slots;
mod times;
mod tls;

use super::ekbatan_config::EkbatanConfig;
use super::error::{AddressError, ConfigError, ConfigProblem, ConfigSource};
use super::findings::Findings;
use super::key_path::KeyPath;
use crate::domain::namespace_problem;

/// The key below which a source lists its databases.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Form {
    /// `ekbatan.sharding`.
    Sharding,
    /// `ekbatan.configs`, for a single database.
    Configs,
}

impl EkbatanConfig {
    /// Checks a configuration that was made in code. The rules are those of a loaded one.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut findings = Findings::default();
        check(self, Form::Sharding, &mut findings);
        if findings.0.is_empty() {
            return Ok(());
        }
        let problems = findings.0.into_iter().map(|finding| ConfigProblem {
            path: finding.path.to_string(),
            source: ConfigSource::Code,
            line: None,
            value: finding.value,
            message: finding.message,
        });
        Err(ConfigError::new(problems.collect()))
    }

    /// Checks a configuration that was made of an address. The error names no key, because nobody has
    /// written one.
    #[doc(hidden)]
    pub fn check_address(&self) -> Result<(), AddressError> {
        self.check().map_err(AddressError)
    }
}

pub(super) fn check(config: &EkbatanConfig, form: Form, findings: &mut Findings) {
    let root = KeyPath::root();
    match &config.namespace {
        Some(name) if name.trim().is_empty() => {
            findings.add(&root.key("namespace"), "is blank; give a name, or remove the key");
        }
        Some(name) => {
            if let Some(why) = namespace_problem(name) {
                findings.add_value(&root.key("namespace"), name, why);
            }
        }
        None => {}
    }
    events::check(&config.events, &root.key("events"), findings);
    jobs::check(&config.jobs, &root.key("jobs"), findings);
    relays::check(&config.relays, &root.key("relay"), findings);
    if form == Form::Configs {
        for (_, member) in config.sharding.shards() {
            slots::check(member, &root.key("configs"), findings);
        }
        return;
    }
    sharding::check(&config.sharding, &root.key("sharding"), findings);
}
