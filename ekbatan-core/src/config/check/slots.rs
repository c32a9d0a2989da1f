//! The rules for the databases of one shard.

use super::data_source::{self, Role};
use super::{locks, tls};
use crate::config::address::family;
use crate::config::dialect::Dialect;
use crate::config::findings::Findings;
use crate::config::key_path::KeyPath;
use crate::config::keys::{SLOTS, missing_primary};
use crate::config::lock_config::LockConfig;
use crate::config::sharding::ShardMemberConfig;
use crate::config::spelling::{is_misspelled, kebab, same_key};

/// The rules of the databases of one shard.
pub(super) fn check(member: &ShardMemberConfig, at: &KeyPath, findings: &mut Findings) {
    for (slot, config) in &member.configs {
        if slot.trim().is_empty() {
            findings.add(at, "has a slot with a blank name; name the use of the database");
        }
        let at = at.key(kebab(slot));
        if let Some((known, _)) = SLOTS.iter().find(|(known, _)| is_misspelled(slot, known)) {
            findings.add(&at, format!("is almost `{known}`, which it probably should be; if it is a database of your own, give it a name that is less alike"));
        }
        let role = match slot {
            slot if same_key(slot, ShardMemberConfig::PRIMARY) => Role::Data,
            slot if same_key(slot, ShardMemberConfig::SECONDARY) => Role::Data,
            slot if same_key(slot, ShardMemberConfig::LOCKS) => Role::Locks,
            _ => Role::Other,
        };
        if role == Role::Locks {
            locks::check(config, member.primary(), &at, findings);
        } else if config.locks != LockConfig::default() {
            findings.add(&at, "has settings of keyed locks; put them into `lock-config`");
        }
        data_source::check(config, role, &at, findings);
        // The application opens the connections of other slots.
        if role != Role::Other {
            tls::check(config, member.primary().filter(|_| role == Role::Locks), &at, findings);
        }
    }
    let primary = at.key("primary-config");
    let Some(main) = member.primary() else {
        findings.add(&primary, missing_primary(member.configs.keys().map(String::as_str)));
        return;
    };
    let Some(replica) = member.secondary() else { return };
    let at = at.key("secondary-config");
    match (main.dialect(), replica.dialect()) {
        (Some(Dialect::Sqlite), _) => findings.add(
            &at,
            "SQLite has no replicas; remove the key. Reads of the file already have their own connections",
        ),
        (Some(main), Some(replica)) if family(main) != family(replica) => {
            findings.add(&at, format!("is {replica:?}, but the primary is {main:?}; a replica has the dialect of its primary"));
        }
        _ => {}
    }
}
