//! The check, at the start, that locks in a deployment are safe.
//!
//! A description of the server is not enough: several products speak the protocol of MongoDB and
//! leave out parts of it. So the check also takes, extends, passes on and releases a key of its own.

use std::time::Duration;

use ekbatan_lock::{BackendError, FailureKind, Grant, GrantRequest, LockError};
use mongodb::bson::{Document, doc};
use tokio::time::Instant;
use uuid::Uuid;

use crate::answer::{number, written};
use crate::documents::Documents;
use crate::pipeline::{CONFIRM, PLACE};

/// The version of the protocol since MongoDB 4.2, the first that updates by pipelines.
const OLDEST: i64 = 8;

/// How long the grants of the check last at most.
const TERM: Duration = Duration::from_secs(60);

/// Tokens are times, of which this is an early one: the year 2020.
const EARLY: i64 = 1_577_836_800_000;

/// The name of the collection.
pub(crate) fn collection(namespace: &str) -> Result<String, LockError> {
    let forbidden = namespace.trim().is_empty()
        || namespace.contains(['$', '\0'])
        || namespace.starts_with("system.");
    if forbidden {
        return Err(refused(&format!(
            "the namespace `{namespace}` is no name of a collection: it is blank, contains `$`, or \
             begins with `system.`; name it after the application, such as `ekbatan-lock`"
        )));
    }
    Ok(namespace.to_owned())
}

/// Rejects deployments that cannot grant locks, and prepares the collection.
pub(crate) async fn check(documents: &Documents) -> Result<(), LockError> {
    let hello = documents.commands().ask(doc! { "hello": 1 }).await;
    check_server(&hello.map_err(start)?)?;
    forget_unused_keys(documents).await?;
    let key = format!("check/{}", Uuid::new_v4());
    let checked = check_locks(documents, &key).await;
    let remove = doc! {
        "delete": documents.commands().collection(),
        "deletes": [{ "q": { "_id": &key }, "limit": 1 }],
    };
    if let Err(error) = documents.commands().run(remove).await {
        tracing::debug!(%error, "the key of a check stays for a day");
    }
    checked
}

fn start(source: BackendError) -> LockError {
    LockError::Start { source }
}

fn refused(reason: &str) -> LockError {
    LockError::Unsafe { reason: format!("MongoDB: {reason}") }
}

fn check_server(hello: &Document) -> Result<(), LockError> {
    let is = |field: &str| hello.get_bool(field).unwrap_or(false);
    if hello.get_str("msg").ok() == Some("isdbgrid") {
        return Err(refused(
            "this is a mongos of a sharded cluster, and each mongos has a clock of its own, by which \
             terms would end; name the members of one replica set, such as one that only keeps locks",
        ));
    }
    if number(hello, "maxWireVersion").unwrap_or_default() < OLDEST {
        return Err(refused("the server is older than 4.2, and cannot decide by its own clock"));
    }
    if is("arbiterOnly") || is("secondary") || !is("isWritablePrimary") {
        let name = hello.get_str("me").unwrap_or("the server");
        return Err(refused(&format!(
            "{name} is not the primary of its replica set; name several members and the \
             `replicaSet`, without `directConnection`, so that the primary is found"
        )));
    }
    Ok(())
}

/// Has the server delete the documents of keys that nobody uses.
async fn forget_unused_keys(documents: &Documents) -> Result<(), LockError> {
    let index = doc! { "key": { "forget": 1 }, "name": "forget", "expireAfterSeconds": 0 };
    let command = doc! {
        "createIndexes": documents.commands().collection(),
        "indexes": [index],
        "writeConcern": { "w": "majority" },
    };
    let answer = documents.commands().run(command).await;
    let created = answer.and_then(|answer| written(&answer));
    created.map_err(|error| match error.kind() {
        FailureKind::Refused => refused(&format!(
            "the collection `{}` could not be prepared: {error}; the user of the locks needs the \
             role `readWrite` on their database",
            documents.commands().collection()
        )),
        _ => start(error),
    })
}

/// Locks a key as callers do, and compares what the server makes of it.
async fn check_locks(documents: &Documents, key: &str) -> Result<(), LockError> {
    let failed = |error: BackendError| match error.kind() {
        FailureKind::Refused => refused(&format!(
            "a key could not be locked as a check ({error}); locks need updates by pipelines with \
             `$$NOW`, confirmed by a majority, as MongoDB 4.2 and FerretDB 2 have them"
        )),
        // A server that does not answer may be as safe as any.
        _ => start(error),
    };
    let other = |found: &str| {
        Err(refused(&format!(
            "a key was locked as a check, and {found}; locks need what MongoDB 4.2 and FerretDB 2 do \
             with an update by a pipeline"
        )))
    };
    let request = |waits: bool| {
        let request = GrantRequest::new(Uuid::new_v4(), "a check", TERM);
        if waits { request.waiting() } else { request }
    };
    let (first, second, third) = (request(false), request(true), request(false));
    let Some(token) = documents.take(key, &first).await.map_err(failed)? else {
        return other("it was not free");
    };
    if token < EARLY {
        return other("the token is not the time");
    }
    let asked = Instant::now();
    if documents.take(key, &second).await.map_err(failed)?.is_some() {
        return other("it got two holders");
    }
    let grant = Grant { owner: first.owner, token };
    if !documents.extend(key, &grant, TERM).await.map_err(failed)? {
        return other("its grant could not be extended");
    }
    let passed_on = Instant::now();
    if !documents.release(key, &grant).await.map_err(failed)? {
        return other("its grant could not be released");
    }
    if documents.release(key, &grant).await.map_err(failed)? {
        return other("it could be released twice");
    }
    if documents.take(key, &third).await.map_err(failed)?.is_some() {
        // What waits for a key has it for a moment only.
        if asked.elapsed() >= PLACE || passed_on.elapsed() >= CONFIRM {
            return Err(start(BackendError::unavailable(
                "MongoDB answers too slowly to be checked; look for the reason in its network or load",
            )));
        }
        return other("it was not passed on to the one that waited");
    }
    match documents.take(key, &second).await.map_err(failed)? {
        Some(next) if next > token => Ok(()),
        Some(_) => other("the next token is not greater"),
        None => other("it was lost to the one that waited"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(change: impl FnOnce(&mut Document)) -> Result<(), String> {
        let mut hello = doc! { "isWritablePrimary": true, "maxWireVersion": 21, "ok": 1.0 };
        change(&mut hello);
        check_server(&hello).map_err(|error| error.to_string())
    }

    #[test]
    fn a_server_that_cannot_keep_locks_is_refused_by_name() {
        assert_eq!(checked(|_| {}), Ok(()));
        let error = |change: fn(&mut Document)| checked(change).unwrap_err();
        let mongos = error(|hello| drop(hello.insert("msg", "isdbgrid")));
        assert!(mongos.contains("mongos"), "{mongos}");
        let old = error(|hello| drop(hello.insert("maxWireVersion", 7)));
        assert!(old.contains("older than 4.2"), "{old}");
        let secondary = error(|hello| {
            hello.insert("isWritablePrimary", false);
            hello.insert("secondary", true);
            hello.insert("me", "b:27017");
        });
        assert!(secondary.contains("b:27017 is not the primary"), "{secondary}");
    }

    #[test]
    fn a_namespace_names_a_collection() {
        assert_eq!(collection("wallet.locks").unwrap(), "wallet.locks");
        for wrong in ["", " ", "a$b", "system.locks"] {
            let error = collection(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("`{wrong}`")), "{error}");
        }
    }
}
