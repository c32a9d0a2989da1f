//! What the action that runs in this task keeps other calls from.
//!
//! A nested call must not wait for a lease or a group that its own task holds: that would
//! deadlock. Such a call runs optimistically instead.

use crate::domain::LockKey;

tokio::task_local! {
    static HELD: HeldResources;
}

/// The resources that this task holds.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldResources {
    /// The key of a lease.
    pub(super) lease: Option<LockKey>,
    /// Whether it holds the guard of a group.
    pub(super) group: bool,
}

impl HeldResources {
    pub(super) fn of_this_task() -> Self {
        HELD.try_with(Self::clone).unwrap_or_default()
    }

    /// Runs a future whose task holds the lease on a key.
    pub(super) async fn with_lease<T>(key: &LockKey, running: impl Future<Output = T>) -> T {
        let held = Self { lease: Some(key.clone()), ..Self::of_this_task() };
        HELD.scope(held, running).await
    }

    /// Runs a future whose task holds the guard of a group.
    pub(super) async fn with_group<T>(running: impl Future<Output = T>) -> T {
        let held = Self { group: true, ..Self::of_this_task() };
        HELD.scope(held, running).await
    }
}
