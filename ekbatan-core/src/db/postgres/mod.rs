//! PostgreSQL: a commit is one statement, and so one round trip.

mod commit;
mod connection;
mod decode;
mod driver;
mod error;
mod fence;
mod form;
#[cfg(test)]
mod guide;
mod locked;
mod range;
mod statement;
mod syntax;

pub(crate) use driver::{PostgresDriver, raw};
