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

macro_rules! on_every_provider {
    (only $module:ident $kind:ident: $($test:ident),* $(,)?) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test(crate::providers::Kind::$kind).await;
                }
            )*
        }
    };
    // The providers whose locks several processes share.
    ($($test:ident),* $(,)?) => {
        on_every_provider!(only redis Redis: $($test),*);
        on_every_provider!(only postgres_lease PostgresLease: $($test),*);
        on_every_provider!(only postgres_session PostgresSession: $($test),*);
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
