//! What the keyed locks and the fence in the commit promise, kept while things fail: lock
//! servers that are killed and forget, sessions that are ended, processes that are stopped,
//! connections that fall silent, callers that go away.
//!
//! What always holds: every run leaves a [`history`] of grants and of what the database
//! committed, and the run is judged by that history alone.
//!
//! A test is an `async fn(Kind)`; `on_every_provider!` makes a `#[tokio::test]` of it per
//! provider. A new provider adds one line to that macro, one to [`providers::Kind`], and what
//! its server is asked and suffers to [`server`].

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
    // Those that a server keeps, which several processes share.
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
