//! What ekbatan and its users test with: real servers, a network that can be
//! counted and cut, and futures that are dropped where it hurts.
//!
//! - [`postgres`]: private PostgreSQL servers, started in moments, killed and
//!   restarted at will, and gone with the test process whatever becomes of it.
//! - [`mysql`]: the same for MySQL and MariaDB.
//! - [`redis`]: the same for Redis.
//! - [`sqlite`]: a SQLite database file that goes with its handle.
//! - [`proxy`]: a TCP proxy between a client and a server that counts round
//!   trips, delays, stalls and cuts.
//! - [`cancel`]: dropping a future after a given number of polls.
//!
//! What always holds: a test starts what it needs, and what it started is gone
//! afterwards. Nothing here waits for a fixed time and hopes; every wait is for
//! an answer, with a deadline that only a broken machine meets. Servers are
//! supported on Linux.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod cancel;
mod database_url;
#[cfg(feature = "mysql")]
pub mod mysql;
pub mod postgres;
pub mod proxy;
pub mod redis;
mod server;
pub mod sqlite;

pub use cancel::{Dropped, drop_at_poll};
#[cfg(feature = "mysql")]
pub use mysql::{MariaDbServer, MariaDbServerBuilder, MySqlServer, MySqlServerBuilder};
pub use postgres::{PostgresServer, PostgresServerBuilder};
pub use proxy::Proxy;
pub use redis::{RedisServer, RedisServerBuilder};
pub use server::ServerError;
pub use sqlite::TempSqlite;

/// Has the example in the README compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
