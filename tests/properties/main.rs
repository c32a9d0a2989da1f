//! Properties that hold for every value. Values are drawn at random and from the edges of types.
//!
//! Every run draws the same values. `EKBATAN_TEST_SEED` selects other values. A test that fails
//! prints its seed, which repeats the failure.

/// Declares each test once for each database, or only for those that `only` names.
macro_rules! on_every_database {
    ($($tests:tt)*) => {
        support::on_every_database! {
            #[tokio::test]
            |dialect|
                &support::TestDatabase::start(&crate::sample::SAMPLES, dialect).await,
                crate::draw::Draw::new();
            $($tests)*
        }
    };
}

mod draw;
mod edges;

mod configuration;
mod sharded_id;

mod conditions;
mod pages;
mod sample;
mod values;
