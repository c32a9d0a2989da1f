//! Makes the configuration from its sections.

use std::collections::BTreeMap;

use super::data_source::data_source;
use super::events::events;
use super::jobs::jobs;
use super::relays::relays;
use super::section::Section;
use crate::config::check::Form;
use crate::config::data_source::DataSourceConfig;
use crate::config::ekbatan_config::EkbatanConfig;
use crate::config::findings::Findings;
use crate::config::key_path::KeyPath;
use crate::config::keys;
use crate::config::sharding::{ShardGroupConfig, ShardMemberConfig, ShardingConfig, UnknownShard};
use crate::config::shown_address::shown;
use crate::config::spelling::{camel, nearest, same_key};
use crate::domain::ShardIdentifier;

/// The database of jobs in the Java framework. Here they are in that of the default shard.
const JAVAS_JOBS: &str = "jobs-config";

/// Makes the configuration, and tells which of the two forms the source used. The lists keep the
/// order of the source, so that rules can name an entry by its index.
pub(super) fn config(mut root: Section, findings: &mut Findings) -> (EkbatanConfig, Form) {
    let mut ignored = Vec::new();
    let namespace = root.text("namespace");
    let events = events(&mut root, findings);
    let jobs = jobs(&mut root, findings);
    let relays = relays(&mut root);
    let slots = root.slots("configs");
    let short = root.at.key("configs");
    let (sharding, form) = match root.section("sharding") {
        Some(section) => {
            if slots.is_some() || findings.has(&short) {
                let message = "is given together with `sharding`, which lists all databases; keep one of the two";
                findings.add(&short, message);
            }
            (sharding(section, findings, &mut ignored), Form::Sharding)
        }
        None => {
            if slots.is_none() && !findings.has(&short) && !findings.has(&root.at) {
                let message = "names no database; give `ekbatan.configs` for one, or `ekbatan.sharding` for several";
                findings.add(&root.at, message);
            }
            let mut sharding = ShardingConfig::new();
            let configs = databases(slots, findings, &mut ignored);
            sharding.add(
                ShardIdentifier::DEFAULT,
                ShardMemberConfig { member: 0, name: None, configs },
            );
            (sharding, Form::Configs)
        }
    };
    (EkbatanConfig { namespace, sharding, events, jobs, relays, ignored }, form)
}

fn sharding(
    mut section: Section,
    findings: &mut Findings,
    ignored: &mut Vec<String>,
) -> ShardingConfig {
    let mut config = ShardingConfig::new();
    if let Some(mut default) = section.section("default-shard") {
        let group = number(&mut default, "group", findings);
        let member = number(&mut default, "member", findings);
        if let Ok(shard) = ShardIdentifier::new(group.into(), member.into()) {
            config.default_shard = shard;
        }
    }
    if section.word("unknown-shard") == Some("default-shard") {
        config.unknown_shard = UnknownShard::DefaultShard;
    }
    for mut group in section.list("groups").unwrap_or_default() {
        let number = number(&mut group, "group", findings);
        let name = text(&mut group, "name", findings);
        let members = group.list("members").unwrap_or_default();
        config.groups.push(ShardGroupConfig {
            group: number,
            name,
            members: members.into_iter().map(|m| member(m, findings, ignored)).collect(),
        });
    }
    config
}

fn member(
    mut section: Section,
    findings: &mut Findings,
    ignored: &mut Vec<String>,
) -> ShardMemberConfig {
    ShardMemberConfig {
        member: number(&mut section, "member", findings),
        name: section.text("name"),
        configs: databases(section.slots("configs"), findings, ignored),
    }
}

fn databases(
    slots: Option<BTreeMap<String, Section>>,
    findings: &mut Findings,
    ignored: &mut Vec<String>,
) -> BTreeMap<String, DataSourceConfig> {
    let slots = slots.unwrap_or_default();
    let read = slots.into_iter().map(|(slot, section)| {
        if same_key(&slot, JAVAS_JOBS) {
            ignored.push(section.at.to_string());
        }
        (camel(&slot), data_source(section, findings, ignored))
    });
    read.collect()
}

/// The number of a group or member. If it is invalid, the problem is listed and 0 takes its place.
fn number(section: &mut Section, key: &str, findings: &mut Findings) -> u8 {
    match section.count(key).and_then(|count| count.try_into().ok()) {
        Some(number) => number,
        None => {
            findings.add(&section.at.key(key), "is not the number of a shard");
            0
        }
    }
}

fn text(section: &mut Section, key: &str, findings: &mut Findings) -> String {
    section.text(key).unwrap_or_else(|| {
        findings.add(&section.at.key(key), "is missing");
        String::new()
    })
}

/// Reports that no source has the root key. `others` are the keys that are at the top instead.
pub(super) fn missing_root<'a>(mut others: impl Iterator<Item = &'a str>, findings: &mut Findings) {
    let mut message = String::from(
        "is missing; all settings are below this key, as in `ekbatan: {configs: {primary-config: {url: ..}}}`",
    );
    // The root key misspelled, or what belongs below it. Files of other frameworks have similar keys.
    let below = |other: &str| keys::names(keys::ROOT).any(|name| same_key(other, name));
    let meant = |other: &&str| nearest(other, ["ekbatan"]).is_some() || below(other);
    if let Some(other) = others.find(meant) {
        message += &format!("; there is `{}` at the top instead", shown(other));
    }
    findings.add(&KeyPath::root(), message);
}
