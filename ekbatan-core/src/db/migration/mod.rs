//! Migrations: append-only scripts, each applied once and recorded.

mod apply;
mod error;
mod history;
mod resume;
mod script;

pub(crate) use apply::migrate;
pub use error::MigrationError;
pub use history::{AppliedMigration, MigrationState};
pub(crate) use history::{applied, migration_states};
pub use script::Migrations;
