//! Guarantees for calls that contend for one key: every strategy on every database.

/// Declares each test once for each database, or only for those that `only` names.
macro_rules! on_every_database {
    ($($tests:tt)*) => {
        support::on_every_database! {
            #[tokio::test]
            |dialect| &support::TestDatabase::start(&support::things::THINGS, dialect).await;
            $($tests)*
        }
    };
}

mod acts;

mod adaptive;
mod choice;
mod correctness;
mod departures;
mod effects;
mod expectations;
mod faults;
mod groups;
mod hot_rows;
mod leases;
mod processes;
mod reads;
mod refusals;
mod rules;
mod several_keys;
mod turns;
