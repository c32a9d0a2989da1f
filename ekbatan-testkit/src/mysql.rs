//! Private MySQL and MariaDB servers.
//!
//! Each [`MySqlServer`] and [`MariaDbServer`] is a real server with its own folder and port. It
//! accepts connections from this machine only, as the user `root` without a password. The two
//! share most of their code; they differ in how they are prepared and in some parameters.
//!
//! Invariants: a server that `start` returned accepts connections. Dropping the handle removes
//! the server and its folder. If the test process ends in any other way, `SIGKILL` included, they
//! are removed a moment later.
//!
//! A database of these servers is only a namespace: one connection can use several databases of
//! a server, and every test sees all of them. Tests that share a server and need a second
//! database each, such as the one for ekbatan's events, must give it a unique name.

mod client;
mod family;
mod front;
mod mariadb_server;
mod mysql_server;
mod parameters;

pub use mariadb_server::{MariaDbServer, MariaDbServerBuilder};
pub use mysql_server::{MySqlServer, MySqlServerBuilder};
