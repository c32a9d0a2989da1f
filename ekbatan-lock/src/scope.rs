//! Who holds a lock: not a thread, for asynchronous work moves between threads.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

tokio::task_local! {
    static SCOPE: LockScope;
}

/// The identity of a holder. What runs within a scope, in the same task, re-enters the locks
/// that the scope holds. A task that is spawned there does not inherit the scope and waits
/// like anyone else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockScope(u64);

impl LockScope {
    /// A scope of its own.
    pub(crate) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The scope that this task is in, if it is in one.
    pub fn current() -> Option<Self> {
        SCOPE.try_with(|scope| *scope).ok()
    }

    /// Runs a future within a scope: within the present one if there is one.
    pub async fn run<F: Future>(work: F) -> F::Output {
        SCOPE.scope(Self::current().unwrap_or_else(Self::fresh), work).await
    }
}
