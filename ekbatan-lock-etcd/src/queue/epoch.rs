//! The number that tokens are counted from.
//!
//! A token is the epoch plus the revision at which a place was made. Revisions grow while the
//! server has its data. The epoch is the time, in milliseconds, at which the namespace was first
//! used, or to which it was moved since. A server that has lost its data starts again with a later
//! epoch, so that its tokens are greater than all before.
//!
//! A token also tells the age of its grant, and revisions grow more slowly than the clock. So the
//! epoch is moved forward when tokens are more than a day behind it.
//!
//! Invariants: the epoch only grows, and a token is counted from the epoch of the answer that tells
//! of the grant. The grants of a key follow each other, so their tokens grow, also when the epoch is
//! moved. A token that was counted from an earlier epoch still identifies its place, because the
//! process remembers the epochs that it has seen. Tokens grow over a loss of data, if the clocks of the processes are not set back at the same time and the server
//! had less than a thousand writes per second since the epoch was moved.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use ekbatan_lock::BackendError;

use super::transaction::{Answer, Transaction};
use crate::answer::Effect;
use crate::client::Client;
use crate::messages::KeyValue;

/// By how many milliseconds tokens may be behind the clock: a day.
const BEHIND: i64 = 86_400_000;

/// What was known before a request was sent.
struct Before {
    /// The greatest revision.
    seen: i64,
    /// The greatest epoch.
    epoch: i64,
}

/// The epoch of a namespace.
pub(super) struct Epoch {
    client: Arc<Client>,
    /// The name of its key.
    key: Vec<u8>,
    /// The one that the last answer has named.
    value: AtomicI64,
    /// All that answers have named: one for each day, or fewer.
    known: Mutex<BTreeSet<i64>>,
    /// The greatest revision that an answer has named.
    seen: AtomicI64,
}

impl Epoch {
    pub(super) fn new(client: Arc<Client>, key: Vec<u8>) -> Self {
        let (value, known, seen) = (AtomicI64::new(0), Mutex::default(), AtomicI64::new(0));
        Self { client, key, value, known, seen }
    }

    /// The revision of a token, unless the token was counted from an earlier epoch.
    pub(super) fn revision(&self, token: i64) -> i64 {
        token.saturating_sub(self.value.load(Ordering::Acquire))
    }

    /// Whether the token is that of a place that was made at this revision.
    pub(super) fn counts(&self, token: i64, revision: i64) -> bool {
        self.known().contains(&token.saturating_sub(revision))
    }

    fn known(&self) -> MutexGuard<'_, BTreeSet<i64>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the epoch of an answer. It is known before others see it.
    fn learn(&self, value: i64) {
        if self.value.load(Ordering::Acquire) != value {
            self.known().insert(value);
            self.value.store(value, Ordering::Release);
        }
    }

    fn latest(&self) -> i64 {
        self.known().last().copied().unwrap_or_default()
    }

    /// Sends a transaction, and notes the epoch in its answer. The answer keeps it: one that comes late from a
    /// server that has lost its data since is no measure for the answers of the next.
    pub(super) async fn send(
        &self,
        asked: Transaction,
        effect: Effect,
    ) -> Result<Answer, BackendError> {
        let before = Before { seen: self.seen.load(Ordering::Acquire), epoch: self.latest() };
        let mut answer = asked.send(&self.client, &self.key, effect).await?;
        let found = answer.keys()?.pop();
        answer.epoch = self.note(found, answer.revision, before).await?;
        Ok(answer)
    }

    /// Notes the epoch that an answer names, and returns it. Makes one if the server has none, and a new one if
    /// the server's data is older than before. Moves one forward that is behind the clock: for the next
    /// request, because others may have counted from the one in this answer until now.
    async fn note(
        &self,
        found: Option<KeyValue>,
        revision: i64,
        before: Before,
    ) -> Result<i64, BackendError> {
        let anew = || {
            // Greater than every token that was counted from what this process has seen, also if the clock
            // of another one was ahead.
            let granted = self.latest().saturating_add(before.seen);
            now().max(granted.saturating_add(1).saturating_sub(revision))
        };
        let Some(found) = found else {
            self.seen.store(revision, Ordering::Release);
            return self.write(0, anew()).await;
        };
        let value = value_of(&found)?;
        // What was asked after an answer cannot be older than that answer.
        if revision < before.seen || value < before.epoch {
            self.seen.store(revision, Ordering::Release);
            // A greater one says that another process has noticed it.
            if value <= self.latest() {
                tracing::warn!(
                    revision,
                    seen_before = before.seen,
                    "the data of etcd is older than it was, as after restoring a backup; the locks \
                     of that time are gone, and tokens are counted anew"
                );
                return self.write(found.mod_revision, anew()).await;
            }
        }
        self.learn(value);
        self.seen.fetch_max(revision, Ordering::AcqRel);
        let now = now();
        if value.saturating_add(revision) < now - BEHIND
            && let Err(error) = self.write(found.mod_revision, now - revision).await
        {
            tracing::debug!(%error, "the tokens of locks in etcd are behind the clock");
        }
        Ok(value)
    }

    /// Makes the epoch, unless there is one. Returns the one there is.
    pub(super) async fn make(&self) -> Result<i64, BackendError> {
        self.write(0, now()).await
    }

    /// Writes the epoch if it was last written at this revision. Notes and returns the one there is.
    async fn write(&self, modified: i64, value: i64) -> Result<i64, BackendError> {
        let key = &self.key;
        let written = Transaction::new()
            .if_modified(key, modified)
            .put(key.clone(), &value.to_string(), 0)
            .get(key)
            .otherwise(Transaction::new().get(key));
        let mut answer = written.send(&self.client, key, Effect::None).await?;
        // The epoch before, and the answer to the write.
        answer.skip();
        if answer.succeeded {
            answer.skip();
        }
        let found = answer.keys()?.pop();
        let found = found.ok_or_else(|| {
            BackendError::unavailable("etcd: the number that tokens are counted from was removed")
        })?;
        let value = value_of(&found)?;
        self.learn(value);
        self.seen.fetch_max(answer.revision, Ordering::AcqRel);
        Ok(value)
    }
}

fn value_of(found: &KeyValue) -> Result<i64, BackendError> {
    let text = String::from_utf8_lossy(&found.value);
    // Tokens have to fit into 47 bits.
    text.parse().ok().filter(|value| (0..1 << 46).contains(value)).ok_or_else(|| {
        BackendError::new(format!(
            "etcd: the value of `{}` is `{text}`, and not the number that tokens are counted \
             from; use a namespace of its own for locks",
            String::from_utf8_lossy(&found.key)
        ))
    })
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_no_epoch_is_named() {
        for value in ["", "x", "-1", "9223372036854775807"] {
            let found = KeyValue {
                key: b"app/epoch".to_vec(),
                value: value.as_bytes().to_vec(),
                ..Default::default()
            };
            let error = value_of(&found).unwrap_err().to_string();
            assert!(error.contains("`app/epoch`") && error.contains(value), "{error}");
        }
    }
}
