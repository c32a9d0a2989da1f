//! Keyed locks and fenced commits under faults: lock servers that are killed or lose their data,
//! sessions that are ended, processes that are stopped, connections that go silent, callers that
//! are dropped.
//!
//! Invariants: a run that commits deposits records a [`history`] of grants and commits, and is
//! judged by that history alone.
//!
//! A test is an `async fn(Kind)`; `on_every_provider!` makes a `#[tokio::test]` of it for each
//! provider. A new provider adds one line to that macro, a variant to [`providers::Kind`], and its
//! server to [`server`].

/// Declares each test once for each provider whose locks several processes share, or in a module
/// for one provider only.
macro_rules! on_every_provider {
    (only $module:ident $kind:ident: $($tests:tt)*) => {
        on_every_provider! { @ [$module = crate::providers::Kind::$kind] $($tests)* }
    };
    (@ $kinds:tt $($tests:tt)*) => {
        support::test_matrix! {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            |kind| kind;
            $kinds
            [$($tests)*]
        }
    };
    ($($tests:tt)*) => {
        on_every_provider! {
            @ [
                redis = crate::providers::Kind::Redis,
                postgres_lease = crate::providers::Kind::PostgresLease,
                postgres_session = crate::providers::Kind::PostgresSession,
            ]
            $($tests)*
        }
    };
}

mod history;
mod ledger;
mod providers;
mod seed;
mod server;
mod worker;

mod calls;
mod dropped;
mod fairness;
mod faults;
mod many;
mod stopped;
