//! What all calls of an executor share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::RetryPolicy;
use super::contention::Strategies;
use super::effect::EffectRunner;
use super::key_locks::KeyLocks;
use super::key_scope::KeyScope;
use crate::domain::{IdGenerator, LockKey};
use crate::outbox::deliveries::DeliveryHub;
use crate::outbox::{CallKey, KeyKind};
use crate::shard::{Databases, KeyHomes};

/// The state of an executor.
pub(super) struct ExecutorState {
    pub(super) databases: Databases,
    pub(super) namespace: String,
    pub(super) key_scope: KeyScope,
    pub(super) key_homes: KeyHomes,
    pub(super) retry: RetryPolicy,
    /// The deadline of calls that set none.
    pub(super) deadline: Duration,
    pub(super) ids: IdGenerator,
    pub(super) key_locks: KeyLocks,
    pub(super) strategies: Strategies,
    pub(super) effects: EffectRunner,
    pub(super) log_principal: bool,
    pub(super) record_reads: bool,
    pub(super) random: Mutex<fastrand::Rng>,
    pub(super) fence_refusals: AtomicU64,
    /// What the events of calls are delivered to.
    pub(super) deliveries: Arc<DeliveryHub>,
}

impl ExecutorState {
    /// A random wait up to the bound ("full jitter").
    pub(super) fn jitter(&self, bound: Duration) -> Duration {
        let share = self.random.lock().unwrap_or_else(PoisonError::into_inner).f64();
        bound.mul_f64(share)
    }

    /// The key of a message. It belongs to no principal.
    pub(super) fn message_key(&self, consumer: String, id: String) -> CallKey {
        let namespace = self.namespace.clone();
        CallKey { kind: KeyKind::Message, namespace, scope: consumer, text: id }
    }

    /// Counts and logs a call that was refused because its lease had ended.
    pub(super) fn count_fence_refusal(&self, key: &str) {
        self.fence_refusals.fetch_add(1, Ordering::Relaxed);
        let key = LockKey::shown(key);
        tracing::warn!(name: "ekbatan.lock.fence_refused", key, "an action was refused: its lease has ended");
    }
}
