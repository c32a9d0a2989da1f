//! What has to hold of a `lock-config`, beyond what holds of every slot.

use std::time::Duration;

use super::address::{Parts, shown};
use super::error::Findings;
use super::key_path::KeyPath;
use super::locks::{LockProviderKind, LockStrategy};
use super::{DataSourceConfig, LockConfig, rules};

/// The shortest term that leaves time to renew it.
const LEAST_TERM: Duration = Duration::from_secs(1);

pub(super) fn check(
    config: &DataSourceConfig,
    primary: Option<&DataSourceConfig>,
    at: &KeyPath,
    findings: &mut Findings,
) {
    texts(&config.locks, at, findings);
    let provider = provider(config, primary, at, findings);
    if let Some(provider) = provider {
        meanings(&config.locks, provider, at, findings);
    }
    if let Some(term) = config.locks.term.filter(|term| *term < LEAST_TERM) {
        let message = format!("is too short to be renewed in time; at least {LEAST_TERM:?}");
        findings.add_value(&at.key("term"), format!("{term:?}"), message);
    }
}

fn texts(locks: &LockConfig, at: &KeyPath, findings: &mut Findings) {
    for (key, text, forbidden) in
        [("namespace", &locks.namespace, &['{', '}'][..]), ("zone", &locks.zone, &['#'])]
    {
        let Some(text) = text else { continue };
        if text.trim().is_empty() {
            findings.add(&at.key(key), "is blank; say what is meant, or leave the key out");
        } else if let Some(sign) = text.chars().find(|sign| forbidden.contains(sign)) {
            let message = format!("has a `{sign}` in it, which has a meaning in the names of keys");
            findings.add_value(&at.key(key), text, message);
        }
    }
}

/// What the locks live in, if what is said of it agrees.
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
            let message = "no locks are known by this; write postgres://.., mysql://.., mariadb://.., sqlite:FILE, redis://.. or rediss://.., or `provider: in-process` without an address";
            findings.add_value(&url, shown(&config.url), message);
            return None;
        };
        if let Some(named) = named.filter(|named| !named.fits(address)) {
            let message = format!("the address is one of {address}; name one of the two");
            findings.add_value(&key, named, message);
            return None;
        }
        return named.or(Some(address));
    }
    // At the address of the primary; a rule of its own is not told again here.
    let primary = primary?;
    let address = LockProviderKind::at(&primary.url)?;
    if config.username.is_some() || config.password.is_some() {
        let mut server = config.clone();
        server.url.clone_from(&primary.url);
        rules::login(&server, &Parts::of(&server.url), at, findings);
    }
    if let Some(named) = named.filter(|named| !named.fits(address)) {
        let message = format!(
            "is missing; the locks are to live in {named}, and the primary is {address}, so give `url`"
        );
        findings.add(&url, message);
        return None;
    }
    named.or(Some(address))
}

/// Keys that mean nothing to this provider are not taken for granted by anyone.
fn meanings(locks: &LockConfig, provider: LockProviderKind, at: &KeyPath, findings: &mut Findings) {
    let session = locks.strategy == Some(LockStrategy::Session);
    if session && !provider.has_sessions() {
        let message = format!(
            "{provider} has no locks of a session; leave the key out, or name postgres, mysql or mariadb as the provider"
        );
        findings.add_value(&at.key("strategy"), "session", message);
    }
    if locks.term.is_some() && session {
        let message = "a lock of a session has no term at the server: it is free when the session ends; leave the key out, or write `strategy: lease`";
        findings.add(&at.key("term"), message);
    }
    if locks.namespace.is_some()
        && !matches!(provider, LockProviderKind::Redis | LockProviderKind::InProcess)
    {
        let message = format!(
            "means nothing to {provider}, where the database keeps applications apart; leave it out"
        );
        findings.add(&at.key("namespace"), message);
    }
}
