//! PostgreSQL: a commit is one statement, and so one round trip.

mod arrays;
mod commit;
mod connection;
mod decode;
mod doorbell;
mod driver;
mod error;
mod fence;
mod form;
#[cfg(test)]
mod guide;
mod in_turn;
mod literal;
mod locked;
mod look;
mod numeric;
mod planned_looks;
mod range;
mod rules;
mod running;
mod statement;
mod syntax;

pub(crate) use driver::{PostgresDriver, raw};
