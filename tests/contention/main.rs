//! What calls that contend for one key may rely on, whatever the strategy, on every database.

/// Runs tests on every database.
macro_rules! on_every_database {
    (only $module:ident $dialect:ident: $($test:ident),* $(,)?) => {
        mod $module {
            use crate::database::{Dialect, TestDatabase};
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test(&TestDatabase::start(Dialect::$dialect).await).await;
                }
            )*
        }
    };
    ($($test:ident),* $(,)?) => {
        on_every_database!(only sqlite Sqlite: $($test),*);
        on_every_database!(only postgres Postgres: $($test),*);
        on_every_database!(only mysql MySql: $($test),*);
        on_every_database!(only mariadb MariaDb: $($test),*);
    };
}

mod acts;
#[path = "../conformance/database.rs"]
#[allow(dead_code)] // shared with the conformance suite, which uses all of it
mod database;
#[path = "../conformance/models.rs"]
#[allow(dead_code)]
mod models;
#[path = "../support/recorder.rs"]
#[allow(dead_code)] // each suite uses a part of it
mod recorder;
#[path = "../../examples/wallet/wallet.rs"]
mod wallet;

mod adaptive;
mod choice;
mod correctness;
mod departures;
mod effects;
mod faults;
mod groups;
mod leases;
mod processes;
mod reads;
mod refusals;
