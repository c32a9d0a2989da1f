//! Windows: what comes in until the cutoff is batched completely and once, whatever happens, and what
//! comes later is refused.
//!
//! A test is an `async fn(Dialect)`, listed in `on_every_database!`.

/// Declares each test once for each database, or only for those that `only` names.
macro_rules! on_every_database {
    ($($tests:tt)*) => {
        support::on_every_database! {
            #[tokio::test(flavor = "multi_thread")]
            |dialect| dialect;
            $($tests)*
        }
    };
}

mod entries;
mod scene;

mod broken_shard;
mod clocks;
mod cutoff;
mod frozen;
mod killed;
mod opening;
mod options;
mod participants;
mod steps;
