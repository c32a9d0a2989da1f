//! The identity of a lock holder. It is not a thread, because async work moves between
//! threads.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

tokio::task_local! {
    static SCOPE: LockScope;
}

/// The identity of a holder. Work within a scope, in the same task, re-enters the locks that
/// the scope holds. A spawned task does not inherit the scope and waits like any other caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockScope(u64);

impl LockScope {
    /// A new scope.
    pub(crate) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The scope of this task, if there is one.
    pub fn current() -> Option<Self> {
        SCOPE.try_with(|scope| *scope).ok()
    }

    /// Runs a future in the current scope, or in a new one if there is none.
    pub async fn run<F: Future>(work: F) -> F::Output {
        SCOPE.scope(Self::current().unwrap_or_else(Self::fresh), work).await
    }
}
