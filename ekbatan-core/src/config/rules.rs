//! What has to hold of a configuration beyond the shape of each value. Loading and
//! [`EkbatanConfig::check`](super::EkbatanConfig::check) apply the same rules.
//!
//! A rule says nothing of a place where something was found already.

use std::collections::BTreeMap;
use std::time::Duration;

use super::address::{Dialect, Parts, scheme};
use super::error::Findings;
use super::key_path::KeyPath;
use super::spelling::{kebab, same_key};
use super::{
    DataSourceConfig, EkbatanConfig, LockConfig, ShardMemberConfig, ShardingConfig, lock_rules,
};
use crate::domain::ShardIdentifier;

/// The shortest threshold that a leak can be told by.
const LEAST_LEAK: Duration = Duration::from_secs(2);
/// The shortest life that makes a pool and not a treadmill.
const LEAST_LIFETIME: Duration = Duration::from_secs(30);

/// Under which keys the databases stand.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Form {
    /// `ekbatan.sharding`.
    Sharding,
    /// `ekbatan.configs`, for a single database.
    Configs,
}

pub(super) fn check(config: &EkbatanConfig, form: Form, findings: &mut Findings) {
    let root = KeyPath::root();
    if config.namespace.as_ref().is_some_and(|name| name.trim().is_empty()) {
        findings.add(&root.key("namespace"), "is blank; name it, or leave the key out");
    }
    if form == Form::Configs {
        for (_, member) in config.sharding.shards() {
            slots(member, &root.key("configs"), findings);
        }
        return;
    }
    sharding(&config.sharding, &root.key("sharding"), findings);
}

fn sharding(sharding: &ShardingConfig, at: &KeyPath, findings: &mut Findings) {
    let groups = at.key("groups");
    if sharding.groups.is_empty() {
        findings.add(&groups, "is empty; at least one group is needed");
    }
    let mut group_numbers = BTreeMap::new();
    let mut places: BTreeMap<(Option<Dialect>, String), KeyPath> = BTreeMap::new();
    let mut eventlogs = BTreeMap::new();
    let mut all_known = true;
    for (position, group) in sharding.groups.iter().enumerate() {
        let at = groups.index(position);
        all_known &= !findings.has(&at) && !findings.has(&at.key("group"));
        if group.name.trim().is_empty() {
            findings.add(&at.key("name"), "is blank; a group needs a name");
        }
        if !findings.has(&at.key("group"))
            && let Some(first) = group_numbers.insert(group.group, at.clone())
        {
            let message = format!("{first} has this number, too; list its members there");
            findings.add_value(&at.key("group"), group.group, message);
        }
        let members = at.key("members");
        if group.members.is_empty() {
            findings.add(&members, "is empty; at least one member is needed");
        }
        all_known &= !findings.has(&members);
        let mut member_numbers = BTreeMap::new();
        for (position, member) in group.members.iter().enumerate() {
            let at = members.index(position);
            let number = at.key("member");
            all_known &= !findings.has(&at) && !findings.has(&number);
            if member.member > ShardIdentifier::MAX_MEMBER {
                findings.add_value(&number, member.member, "is too large; members go from 0 to 63");
            }
            if !findings.has(&number)
                && let Some(first) = member_numbers.insert(member.member, at.clone())
            {
                let message =
                    format!("{first} has this number, too; each member of a group has its own");
                findings.add_value(&number, member.member, message);
            }
            if member.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
                findings.add(&at.key("name"), "is blank; name the member, or leave the key out");
            }
            slots(member, &at.key("configs"), findings);
            if let Some(primary) = member.primary()
                && !primary.url.is_empty()
            {
                let at = at.key("configs").key("primary-config");
                let dialect = primary.dialect();
                let place = (dialect.map(family), Parts::of(&primary.url).place(dialect));
                if let Some(first) = places.get(&place) {
                    let message =
                        format!("is the database of {first}; each shard has one of its own");
                    findings.add_value(&at.key("url"), primary.shown_url(), message);
                } else {
                    places.insert(place, at.clone());
                }
                let server = Parts::of(&primary.url).server(dialect);
                if dialect.map(family) == Some(Dialect::MySql)
                    && let Some(first) =
                        eventlogs.insert((server, primary.eventlog.clone()), at.clone())
                {
                    let message = format!(
                        "is also that of {first}, on the same server; what two shards have committed could not be told apart, so name another one"
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
        let message = format!("is not among the shards, which are {}", shards.join(", "));
        findings.add_value(&default, sharding.default_shard, message);
    }
}

fn slots(member: &ShardMemberConfig, at: &KeyPath, findings: &mut Findings) {
    for (slot, config) in &member.configs {
        if slot.trim().is_empty() {
            findings.add(at, "a slot has a blank name; name what the database is used for");
        }
        let at = at.key(kebab(slot));
        let role = match slot {
            slot if same_key(slot, ShardMemberConfig::PRIMARY) => Role::Data,
            slot if same_key(slot, ShardMemberConfig::SECONDARY) => Role::Data,
            slot if same_key(slot, ShardMemberConfig::LOCKS) => Role::Locks,
            _ => Role::Other,
        };
        if role == Role::Locks {
            lock_rules::check(config, member.primary(), &at, findings);
        } else if config.locks != LockConfig::default() {
            findings.add(&at, "says something of locks, which has a meaning only in `lock-config`");
        }
        data_source(config, role, &at, findings);
    }
    let primary = at.key("primary-config");
    let Some(main) = member.primary() else {
        findings.add(&primary, "is missing; a shard needs its database");
        return;
    };
    let Some(replica) = member.secondary() else { return };
    let at = at.key("secondary-config");
    match (main.dialect(), replica.dialect()) {
        (Some(Dialect::Sqlite), _) => findings.add(
            &at,
            "SQLite has no replicas; leave the key out: readers of the file have connections of their own",
        ),
        (Some(main), Some(replica)) if family(main) != family(replica) => {
            findings.add(&at, format!("a replica of {main:?} cannot be {replica:?}"));
        }
        _ => {}
    }
}

/// MariaDB's servers are reached by either name.
fn family(dialect: Dialect) -> Dialect {
    if dialect == Dialect::MariaDb { Dialect::MySql } else { dialect }
}

/// What a slot is for.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    /// The framework itself connects, and reads and writes.
    Data,
    /// Keyed locks, which have rules of their own.
    Locks,
    /// Who uses it knows what it needs.
    Other,
}

fn data_source(config: &DataSourceConfig, role: Role, at: &KeyPath, findings: &mut Findings) {
    let url = at.key("url");
    let parts = Parts::of(&config.url);
    let dialect = config.dialect();
    if findings.has(&at.key("jdbc-url")) {
        // Whatever can be said of the address has been said.
    } else if config.url.trim().is_empty() {
        if role != Role::Locks {
            findings.add(&url, "is missing; give `url` or `jdbc-url`");
        }
    } else if role == Role::Data && dialect.is_none() {
        let message = match scheme(&config.url) {
            "jdbc" => "this is how JDBC writes addresses; move it to the key `jdbc-url`",
            _ => {
                "no database is known by this; write sqlite:FILE, postgres://HOST:PORT/DATABASE, mysql://HOST:PORT/DATABASE or mariadb://HOST:PORT/DATABASE"
            }
        };
        findings.add_value(&url, config.shown_url(), message);
    } else if dialect.is_some() && parts.several_hosts() {
        let message = "names several hosts, and a connection reaches one; name one, or an address that leads to them";
        findings.add_value(&url, config.shown_url(), message);
    }
    if dialect == Some(Dialect::Sqlite) {
        let given = [
            ("username", config.username.is_some()),
            ("password", config.password.is_some()),
            ("tls-mode", config.tls_mode.is_some()),
            ("tls-root-cert", config.tls_root_cert.is_some()),
        ];
        for (key, _) in given.into_iter().filter(|(_, given)| *given) {
            findings.add(&at.key(key), "means nothing to SQLite, which is a file; leave it out");
        }
    }
    login(config, &parts, at, findings);
    numbers(config, at, findings);
}

pub(super) fn login(
    config: &DataSourceConfig,
    parts: &Parts<'_>,
    at: &KeyPath,
    findings: &mut Findings,
) {
    if let Some(username) = &config.username {
        if username.trim().is_empty() {
            findings.add(&at.key("username"), "is blank; name the user, or leave the key out");
        } else if let Some(inside) = parts.user.as_ref().filter(|inside| *inside != username) {
            let message = format!("the address names the user {inside:?}; name one of the two");
            findings.add_value(&at.key("username"), username, message);
        }
    }
    if config.password.is_some() && parts.has_password {
        let message = "the address holds a password, too; keep one of the two";
        findings.add(&at.key("password"), message);
    }
}

fn numbers(config: &DataSourceConfig, at: &KeyPath, findings: &mut Findings) {
    for (key, value) in [
        ("maximum-pool-size", config.maximum_pool_size),
        ("lanes", config.lanes),
        ("fold-limit", config.fold_limit),
    ] {
        if value == 0 {
            findings.add_value(&at.key(key), value, "must be at least 1");
        }
    }
    if config.minimum_idle > config.maximum_pool_size && !findings.has(&at.key("maximum-pool-size"))
    {
        let message =
            format!("is more than maximum-pool-size, which is {}", config.maximum_pool_size);
        findings.add_value(&at.key("minimum-idle"), config.minimum_idle, message);
    }
    for (key, value, least) in [
        ("leak-detection-threshold", config.leak_detection_threshold, LEAST_LEAK),
        ("max-lifetime", config.max_lifetime, LEAST_LIFETIME),
    ] {
        if !value.is_zero() && value < least {
            let message = format!("is too short; at least {least:?}, or 0s for never");
            findings.add_value(&at.key(key), format!("{value:?}"), message);
        }
    }
    for (key, value) in [
        ("connection-timeout", Some(config.connection_timeout)),
        ("commit-timeout", Some(config.commit_timeout)),
        ("settle-timeout", Some(config.settle_timeout)),
        ("statement-timeout", config.statement_timeout),
    ] {
        if value.is_some_and(|value| value < Duration::from_millis(1)) {
            findings.add(&at.key(key), "must be at least 1ms");
        }
    }
    if config.application_name.trim().is_empty() {
        findings.add(&at.key("application-name"), "is blank; name it, or leave the key out");
    }
}
