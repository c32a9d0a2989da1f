//! What holds for whatever value: properties, over values drawn at random and from the edges.
//!
//! The cases are the same on every run. `EKBATAN_TEST_SEED` draws others; the seed of a
//! test that fails is printed, and the same seed repeats it.

/// Runs tests on every database, each in its own module, with draws from the seed.
macro_rules! on_every_database {
    ($($test:ident),* $(,)?) => {
        on_every_database!(only sqlite Sqlite: $($test),*);
        on_every_database!(only postgres Postgres: $($test),*);
        on_every_database!(only mysql MySql: $($test),*);
        on_every_database!(only mariadb MariaDb: $($test),*);
    };
    (only $module:ident $dialect:ident: $($test:ident),* $(,)?) => {
        mod $module {
            use crate::database::{Dialect, TestDatabase};
            use crate::draw::Draw;
            $(
                #[tokio::test]
                async fn $test() {
                    let draw = Draw::new();
                    super::$test(&TestDatabase::start(Dialect::$dialect).await, draw).await;
                }
            )*
        }
    };
}

mod draw;
mod edges;

mod configuration;
mod sharded_id;

mod conditions;
mod database;
mod pages;
mod sample;
mod values;
