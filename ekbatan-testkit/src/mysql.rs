//! Private MySQL and MariaDB servers.
//!
//! Each [`MySqlServer`] and [`MariaDbServer`] is a real server with a folder and a
//! port of its own, reachable from this machine only, as the user `root`, who has
//! no password. The two are close relatives, so most is written once; they differ
//! in how they are prepared and in some parameters. What always holds: a server
//! that has been handed out accepts connections; once its handle is dropped, the
//! server and its folder are gone; and if the test process ends in any other way,
//! `SIGKILL` included, they are gone a moment later.
//!
//! A database of these servers is only a namespace: two databases of one server
//! can be used from one connection, and what a test creates besides its own is
//! seen by every other test. Where tests that share a server need a second
//! database each, such as the one in which ekbatan keeps its events, it has to
//! get a name of its own for each of them.

mod client;
mod mariadb;
mod oracle;
mod parameters;

pub use mariadb::{MariaDbServer, MariaDbServerBuilder};
pub use oracle::{MySqlServer, MySqlServerBuilder};
