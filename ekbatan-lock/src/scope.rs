//! The identity of a lock holder. It is not a thread, because async work moves between
//! threads.
//!
//! Invariants: a call re-enters only what a call around it holds. Calls beside each other
//! exclude each other, also in one task.

use std::future::Future;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

tokio::task_local! {
    static SCOPE: Entered;
}

/// The identity of a holder. Work within a scope, in the same task, re-enters the locks that
/// the scope holds, and those that the scopes around it hold. A spawned task does not inherit
/// the scope and waits like any other caller.
///
/// `with_lock`, `with_locks`, `run_once` and `lead` open a scope for their work. Their locks are
/// re-entered by calls within the work. A lease that the work takes by `acquire` or `take` is a
/// holder of its own, which nothing re-enters, so that parts of the work that run beside each
/// other, for example in `join!`, exclude each other.
#[derive(Debug, Clone)]
pub struct LockScope(Arc<ScopeNode>);

#[derive(Debug)]
struct ScopeNode {
    id: u64,
    around: Option<LockScope>,
}

/// The scope that a task is in.
#[derive(Clone)]
struct Entered {
    scope: LockScope,
    /// Whether leases that are taken here belong to the scope itself.
    holds: bool,
}

impl LockScope {
    /// A new scope within the current one.
    fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(ScopeNode { id, around: Self::current() }))
    }

    /// The scope of this task, if there is one.
    pub fn current() -> Option<Self> {
        SCOPE.try_with(|entered| entered.scope.clone()).ok()
    }

    /// The scope that holds a lease which is taken here.
    pub(crate) fn of_new_lease() -> Self {
        let entered = SCOPE.try_with(|entered| entered.holds.then(|| entered.scope.clone()));
        entered.ok().flatten().unwrap_or_else(Self::fresh)
    }

    /// Whether this scope is `holder`, or lies within it.
    pub(crate) fn is_within(&self, holder: &Self) -> bool {
        let mut scope = Some(self);
        while let Some(here) = scope {
            if here == holder {
                return true;
            }
            scope = here.0.around.as_ref();
        }
        false
    }

    /// Runs a future as one holder: in a new scope, within the current one if there is one. All
    /// leases that it takes belong to the scope, so it re-enters them, also from parts of the
    /// future that run beside each other. Parts that must exclude each other need a scope each.
    pub async fn run<F: Future>(work: F) -> F::Output {
        SCOPE.scope(Entered { scope: Self::fresh(), holds: true }, work).await
    }

    /// Runs the work under a lock that the current scope holds. What the work takes belongs to
    /// scopes of its own.
    pub(crate) async fn run_work<F: Future>(work: F) -> F::Output {
        match Self::current() {
            Some(scope) => SCOPE.scope(Entered { scope, holds: false }, work).await,
            None => work.await,
        }
    }
}

impl PartialEq for LockScope {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for LockScope {}

impl Hash for LockScope {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}
