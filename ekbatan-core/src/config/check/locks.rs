//! The rules for a `lock-config`, in addition to those for every database.

use std::time::Duration;

use super::login;
use super::times::check_longest;
use crate::config::address::Parts;
use crate::config::data_source::{DataSourceConfig, LONGEST_TIMEOUT};
use crate::config::findings::Findings;
use crate::config::key_path::KeyPath;
use crate::config::lock_config::{LockConfig, LockProviderKind, LockStrategy};
use crate::config::lock_settings::RETRY_SLEEP;
use crate::config::parameters::not_for_locks;
use crate::config::shown_address::shown;

/// A shorter term leaves no time to renew it.
const LEAST_TERM: Duration = Duration::from_secs(1);

/// The rules of a `lock-config`, in addition to those of every database.
pub(super) fn check(
    config: &DataSourceConfig,
    primary: Option<&DataSourceConfig>,
    at: &KeyPath,
    findings: &mut Findings,
) {
    texts(&config.locks, at, findings);
    pauses(&config.locks, at, findings);
    let provider = provider(config, primary, at, findings);
    if let Some(provider) = provider {
        meanings(&config.locks, provider, at, findings);
    }
    match config.locks.term {
        Some(term) if term < LEAST_TERM => {
            let message =
                format!("is too short to be renewed in time; give at least {LEAST_TERM:?}");
            findings.add_time(&at.key("term"), term, message);
        }
        Some(term) => check_longest("term", term, LONGEST_TIMEOUT, at, findings),
        None => {}
    }
}

fn texts(locks: &LockConfig, at: &KeyPath, findings: &mut Findings) {
    for (key, text, forbidden) in
        [("namespace", &locks.namespace, &['{', '}'][..]), ("zone", &locks.zone, &['#'])]
    {
        let Some(text) = text else { continue };
        if text.trim().is_empty() {
            findings.add(&at.key(key), "is blank; give a value, or remove the key");
        } else if let Some(sign) = text.chars().find(|sign| forbidden.contains(sign)) {
            let message = format!(
                "contains `{sign}`, which separates the parts of key names; use another character"
            );
            findings.add_value(&at.key(key), text, message);
        }
    }
}

/// The pauses before a request is repeated.
fn pauses(locks: &LockConfig, at: &KeyPath, findings: &mut Findings) {
    let (first, longest) = ("retry-sleep", "max-retry-sleep");
    for (key, pause) in [(first, locks.retry_sleep), (longest, locks.max_retry_sleep)] {
        check_longest(key, pause.unwrap_or_default(), LONGEST_TIMEOUT, at, findings);
    }
    let least = locks.retry_sleep.unwrap_or(RETRY_SLEEP.0);
    if let Some(pause) = locks.max_retry_sleep.filter(|pause| *pause < least)
        && !findings.has(&at.key(first))
    {
        let message = format!("is less than retry-sleep, which is {least:?}");
        findings.add_time(&at.key(longest), pause, message);
    }
}

/// Where the locks are stored, if the provider and the address agree.
fn provider(
    config: &DataSourceConfig,
    primary: Option<&DataSourceConfig>,
    at: &KeyPath,
    findings: &mut Findings,
) -> Option<LockProviderKind> {
    let (url, key) = (at.key("url"), at.key("provider"));
    let named = config.locks.provider;
    if named == Some(LockProviderKind::InProcess) {
        return named;
    }
    if findings.has(&url) || findings.has(&at.key("jdbc-url")) || findings.has(&key) {
        return None;
    }
    if !config.url.trim().is_empty() {
        let Some(address) = LockProviderKind::at(&config.url) else {
            let message = "is not the address of a known lock provider; write postgres://.., mysql://.., mariadb://.., sqlite:FILE, redis://.., rediss://.., etcd://.., etcds://.., mongodb://.., aerospike://.. or hbase://.., or `provider: in-process` without an address";
            findings.add_value(&url, shown(&config.url), message);
            return None;
        };
        if let Some(named) = named.filter(|named| !named.fits(address)) {
            let message =
                format!("contradicts the address, which is one of {address}; keep one of the two");
            findings.add_value(&key, named, message);
            return None;
        }
        return named.or(Some(address));
    }
    // The locks are at the address of the primary, whose problems are reported there.
    let primary = primary?;
    let address = LockProviderKind::at(&primary.url)?;
    if config.username.is_some() || config.password.is_some() {
        let mut server = config.clone();
        server.url.clone_from(&primary.url);
        login::check(&server, &Parts::of(&server.url), at, findings);
    }
    if let Some(named) = named.filter(|named| !named.fits(address)) {
        let message = format!(
            "is missing; the provider is {named} and the primary is {address}, so give `url`"
        );
        findings.add(&url, message);
        return None;
    }
    if address == LockProviderKind::Postgres
        && let Some(parameter) = not_for_locks(&Parts::opened(&primary.url))
    {
        let message = format!(
            "is missing; the address of the primary has the parameter `{parameter}`, which locks cannot take over, so give `url`"
        );
        findings.add(&url, message);
    }
    named.or(Some(address))
}

/// Rejects keys that have no meaning for this provider.
fn meanings(locks: &LockConfig, provider: LockProviderKind, at: &KeyPath, findings: &mut Findings) {
    let session = locks.strategy == Some(LockStrategy::Session);
    if session && !provider.has_sessions() {
        let message = format!(
            "{provider} has no session locks; remove the key, or use the provider postgres, mysql or mariadb"
        );
        findings.add_value(&at.key("strategy"), "session", message);
    }
    if locks.term.is_some() && session {
        let message = "has no meaning for session locks, which end with the session; remove the key, or write `strategy: lease`";
        findings.add(&at.key("term"), message);
    }
    if locks.asynchronous && (session || provider != LockProviderKind::Postgres) {
        let message = format!(
            "has a meaning for leases in PostgreSQL only, and these are {} in {provider}; remove the key",
            if session { "session locks" } else { "locks" }
        );
        findings.add_value(&at.key("grants"), "asynchronous", message);
    }
    if let Some(namespace) = &locks.namespace
        && matches!(provider, LockProviderKind::Etcd | LockProviderKind::HBase)
        && namespace.contains('/')
    {
        let message = format!(
            "contains `/`, which separates the parts of key names in {provider}; use another \
             character"
        );
        findings.add_value(&at.key("namespace"), namespace, message);
    }
    if locks.namespace.is_some()
        && !matches!(
            provider,
            LockProviderKind::Redis
                | LockProviderKind::Etcd
                | LockProviderKind::HBase
                | LockProviderKind::MongoDb
                | LockProviderKind::Aerospike
                | LockProviderKind::InProcess
        )
    {
        let message = format!(
            "has no meaning for {provider}, where each database has its own locks; remove the key"
        );
        findings.add(&at.key("namespace"), message);
    }
}
