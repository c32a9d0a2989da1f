//! The rules that compare shards with each other.

use std::collections::BTreeMap;

use super::slots;
use crate::config::address::{Parts, family};
use crate::config::dialect::Dialect;
use crate::config::findings::Findings;
use crate::config::key_path::KeyPath;
use crate::config::sharding::ShardingConfig;
use crate::domain::ShardIdentifier;

/// The rules of all shards together.
pub(super) fn check(sharding: &ShardingConfig, at: &KeyPath, findings: &mut Findings) {
    let groups = at.key("groups");
    if sharding.groups.is_empty() {
        findings.add(&groups, "is empty; give at least one group");
    }
    let mut group_numbers = BTreeMap::new();
    let mut places: BTreeMap<(Option<Dialect>, String), KeyPath> = BTreeMap::new();
    let mut eventlogs = BTreeMap::new();
    let mut all_known = true;
    for (position, group) in sharding.groups.iter().enumerate() {
        let at = groups.index(position);
        all_known &= !findings.has(&at) && !findings.has(&at.key("group"));
        if group.name.trim().is_empty() {
            findings.add(&at.key("name"), "is blank; give the group a name");
        }
        if !findings.has(&at.key("group"))
            && let Some(first) = group_numbers.insert(group.group, at.clone())
        {
            let message = format!("{first} already has this number; list these members there");
            findings.add_value(&at.key("group"), group.group, message);
        }
        let members = at.key("members");
        if group.members.is_empty() {
            findings.add(&members, "is empty; give at least one member");
        }
        all_known &= !findings.has(&members);
        let mut member_numbers = BTreeMap::new();
        for (position, member) in group.members.iter().enumerate() {
            let at = members.index(position);
            let number = at.key("member");
            all_known &= !findings.has(&at) && !findings.has(&number);
            if member.member > ShardIdentifier::MAX_MEMBER {
                findings.add_value(
                    &number,
                    member.member,
                    "is too large; a member is a number from 0 to 63",
                );
            }
            if !findings.has(&number)
                && let Some(first) = member_numbers.insert(member.member, at.clone())
            {
                let message =
                    format!("{first} already has this number; give each member of a group its own");
                findings.add_value(&number, member.member, message);
            }
            if member.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
                findings
                    .add(&at.key("name"), "is blank; give the member a name, or remove the key");
            }
            slots::check(member, &at.key("configs"), findings);
            if let Some(primary) = member.primary()
                && !primary.url.is_empty()
            {
                let at = at.key("configs").key("primary-config");
                let dialect = primary.dialect();
                let parts = Parts::opened(&primary.url);
                let place = (dialect.map(family), parts.place(primary.username.as_deref()));
                if let Some(first) = places.get(&place) {
                    let message =
                        format!("is already the database of {first}; give each shard its own");
                    findings.add_value(&at.key("url"), primary.shown_url(), message);
                } else {
                    places.insert(place, at.clone());
                }
                if dialect.map(family) == Some(Dialect::MySql)
                    && let Some(first) =
                        eventlogs.insert((parts.server(), primary.eventlog.clone()), at.clone())
                {
                    let message = format!(
                        "is already the event log of {first} on the same server, and the commits of two shards would mix; give another name"
                    );
                    findings.add_value(&at.key("eventlog"), &primary.eventlog, message);
                }
            }
        }
    }
    let default = at.key("default-shard");
    let known = !findings.has(&groups)
        && all_known
        && ["group", "member"].iter().all(|key| !findings.has(&default.key(*key)));
    if known && sharding.member(sharding.default_shard).is_none() {
        let shards: Vec<String> = sharding.shards().map(|(shard, _)| shard.to_string()).collect();
        let message = format!("is not one of the shards; they are {}", shards.join(", "));
        findings.add_value(&default, sharding.default_shard, message);
    }
}
