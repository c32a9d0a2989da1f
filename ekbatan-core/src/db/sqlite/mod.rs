//! SQLite, the embedded default: one file, one writer at a time, many readers.

mod commit;
mod connection;
mod decode;
mod doorbell;
mod driver;
mod error;
mod fence;
mod foreign_keys;
#[cfg(test)]
mod guide;
mod in_turn;
mod library;
mod library_thread;
mod pace;
mod rules;
mod session;
mod statement;
mod syntax;
#[cfg(test)]
mod tests;
mod writer_lock;

pub use driver::file_options;
pub(crate) use driver::{SqliteDriver, raw};
