//! The check, at the start, that locks in a namespace are safe.
//!
//! The settings of a namespace may differ from node to node, so each node is asked.

use std::collections::HashMap;
use std::time::Duration;

use ekbatan_lock::{BackendError, FailureKind, Grant, GrantRequest, LockError};
use uuid::Uuid;

use crate::client::Commands;
use crate::records::Records;

/// How long the grants of the check last at most.
const TERM: Duration = Duration::from_secs(60);

/// Tokens are times, of which this is an early one: the year 2020.
const EARLY: i64 = 1_577_836_800_000;

/// The most characters of a set's name.
const LONGEST: usize = 63;

fn refused(reason: &str) -> LockError {
    LockError::Unsafe { reason: format!("Aerospike: {reason}") }
}

/// The name of the set.
pub(crate) fn set(namespace: &str) -> Result<String, LockError> {
    let forbidden = namespace.trim().is_empty()
        || namespace.len() > LONGEST
        || namespace.contains([':', ';', '=', '/']);
    if forbidden {
        return Err(refused(&format!(
            "the namespace `{namespace}` of the locks is no name of a set: it is blank, longer than \
             {LONGEST} characters, or contains one of `:;=/`; name it after the application, such as \
             `ekbatan-lock`"
        )));
    }
    Ok(namespace.to_owned())
}

/// Rejects namespaces that cannot keep locks. Returns whether it is strongly consistent.
pub(crate) async fn check_namespace(commands: &Commands) -> Result<bool, LockError> {
    let nodes = commands.about_namespace().await;
    let nodes = nodes.map_err(|source| LockError::Start { source })?;
    let mut consistent = Vec::new();
    for (node, text) in &nodes {
        consistent.push(check_node(commands.namespace(), node, text)?);
    }
    match consistent.first() {
        None => Err(LockError::Start { source: BackendError::unavailable("Aerospike: no node") }),
        Some(first) if consistent.iter().all(|other| other == first) => Ok(*first),
        Some(_) => Err(refused(&format!(
            "the namespace `{}` is strongly consistent on some nodes and not on others; give all \
             nodes the same configuration",
            commands.namespace()
        ))),
    }
}

/// Whether the namespace of a node is strongly consistent, from `name=value;..`.
fn check_node(namespace: &str, node: &str, text: &str) -> Result<bool, LockError> {
    let settings: HashMap<&str, &str> =
        text.split(';').filter_map(|setting| setting.split_once('=')).collect();
    let wrong =
        |what: String| Err(refused(&format!("the namespace `{namespace}` of {node} {what}")));
    let is = |name: &str, value: &str| settings.get(name) == Some(&value);
    let Some(period) = settings.get("nsup-period") else {
        return wrong("does not exist; name the namespace that the locks are for".to_owned());
    };
    // Pressure on memory or disk would delete records before their time.
    let evicts = |(name, value): (&&str, &&str)| {
        let name = name.strip_prefix("storage-engine.").unwrap_or(name);
        let by_share = (name.starts_with("evict-") && name.ends_with("-pct"))
            || name.starts_with("high-water-");
        let is_speed = name == "evict-tenths-pct";
        (by_share && !is_speed && value.parse() != Ok(0.0)).then(|| format!("{name} {value}"))
    };
    if let Some(setting) = settings.iter().find_map(evicts) {
        return wrong(format!(
            "has `{setting}`, so it may delete a lock that is held; set it to 0, or keep locks in a \
             namespace of their own"
        ));
    }
    if is("write-commit-level-override", "master") {
        return wrong(
            "has `write-commit-level-override master`, so a grant is lost with one node; remove the \
             setting"
                .to_owned(),
        );
    }
    if is("reject-non-xdr-writes", "true") {
        return wrong(
            "accepts writes of other clusters only; name the cluster to write to".to_owned(),
        );
    }
    if is("stop_writes", "true") || is("clock_skew_stop_writes", "true") {
        let message = format!(
            "Aerospike: the namespace `{namespace}` of {node} takes no writes at present; look for \
             `stop-writes` in its log"
        );
        return Err(LockError::Start { source: BackendError::unavailable(message) });
    }
    let is_consistent = is("strong-consistency", "true");
    if !is_consistent && *period == "0" {
        return wrong(
            "has `nsup-period 0`, so it refuses records that expire, and the records of keys that \
             nobody uses would stay for ever; set it to some seconds"
                .to_owned(),
        );
    }
    Ok(is_consistent)
}

/// Locks a key as callers do, and compares what the server makes of it.
pub(crate) async fn check_locks(records: &Records) -> Result<(), LockError> {
    let key = format!("check/{}", Uuid::new_v4());
    let failed = |error: BackendError| match error.kind() {
        FailureKind::Refused => refused(&format!(
            "a key could not be locked as a check ({error}); locks need Aerospike 6.0 or newer, and a \
             user with the role `read-write`"
        )),
        // A server that does not answer may be as safe as any.
        _ => LockError::Start { source: error },
    };
    let other = |found: &str| {
        Err(refused(&format!(
            "a key was locked as a check, and {found}; locks need Aerospike 6.0 or newer"
        )))
    };
    let request = || GrantRequest::new(Uuid::new_v4(), "a check", TERM);
    let (first, second) = (request(), request());
    let Some(token) = records.take(&key, &first).await.map_err(failed)? else {
        return other("it was not free");
    };
    if token < EARLY {
        return other("the token is not the time");
    }
    if records.take(&key, &second).await.map_err(failed)?.is_some() {
        return other("it got two holders");
    }
    let grant = Grant { owner: first.owner, token };
    if !records.extend(&key, &grant, TERM).await.map_err(failed)? {
        return other("its grant could not be extended");
    }
    if !records.release(&key, &grant).await.map_err(failed)?.0 {
        return other("its grant could not be released");
    }
    if records.release(&key, &grant).await.map_err(failed)?.0 {
        return other("it could be released twice");
    }
    match records.take(&key, &second).await.map_err(failed)? {
        Some(next) if next > token => {
            let grant = Grant { owner: second.owner, token: next };
            records.release(&key, &grant).await.map(drop).map_err(failed)
        }
        Some(_) => other("the next token is not greater"),
        None => other("it was not free after its release"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server of version 8.1 answers, as far as it matters here.
    const USUAL: &str = "stop_writes=false;clock_skew_stop_writes=false;nsup-period=1;\
        evict-tenths-pct=5;evict-indexes-memory-pct=0;storage-engine.evict-used-pct=0;\
        strong-consistency=false;write-commit-level-override=off;reject-non-xdr-writes=false";

    fn checked(from: &str, to: &str) -> Result<bool, String> {
        assert!(USUAL.contains(from));
        check_node("ns", "n1", &USUAL.replacen(from, to, 1)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_namespace_that_cannot_keep_locks_is_refused_by_name() {
        assert!(!check_node("ns", "n1", USUAL).unwrap());
        for (from, to, said) in [
            ("nsup-period=1", "nsup-period=0", "nsup-period 0"),
            ("evict-used-pct=0", "evict-used-pct=60", "evict-used-pct 60"),
            (
                "evict-indexes-memory-pct=0",
                "evict-sys-memory-pct=50.5",
                "evict-sys-memory-pct 50.5",
            ),
            ("evict-tenths-pct=5", "high-water-memory-pct=60", "high-water-memory-pct 60"),
            ("override=off", "override=master", "write-commit-level-override master"),
            ("xdr-writes=false", "xdr-writes=true", "other clusters"),
            ("stop_writes=false", "stop_writes=true", "takes no writes"),
        ] {
            let error = checked(from, to).unwrap_err();
            assert!(error.contains(said) && error.contains("`ns` of n1"), "{error}");
        }
        let missing = check_node("ns", "n1", "ERROR::no such namespace").unwrap_err().to_string();
        assert!(missing.contains("does not exist"), "{missing}");
    }

    #[test]
    fn a_strongly_consistent_namespace_deletes_nothing() {
        let consistent = "strong-consistency=true";
        assert_eq!(checked("strong-consistency=false", consistent), Ok(true));
        let text = USUAL.replacen("strong-consistency=false", consistent, 1);
        let text = text.replacen("nsup-period=1", "nsup-period=0", 1);
        assert!(check_node("ns", "n1", &text).unwrap());
    }

    #[test]
    fn a_namespace_of_locks_names_a_set() {
        assert_eq!(set("wallet.locks").unwrap(), "wallet.locks");
        for wrong in ["", " ", "a:b", &"x".repeat(64)] {
            assert!(set(wrong).unwrap_err().to_string().contains(&format!("`{wrong}`")));
        }
    }
}
