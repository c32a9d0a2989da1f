//! MySQL and MariaDB: a commit is one packet of several statements, and so one round trip.
//!
//! One driver serves both servers. The url's scheme names the server that is meant, and the
//! driver rejects the other one. Where the two differ, the code asks `Flavour`.

mod catalogue;
mod commit;
mod connection;
mod decode;
mod driver;
mod enum_values;
mod error;
mod fence;
mod flavour;
#[cfg(test)]
mod guide;
mod has_run;
mod in_turn;
mod literal;
mod locked;
mod locks;
mod migration;
mod options;
mod order;
mod packets;
mod placeholders;
mod rules;
mod running;
mod session;
mod statement;
mod syntax;

pub(crate) use driver::{MySqlDriver, raw};
pub use options::server_options;
