//! The servers that grant keys: the process itself, PostgreSQL, MySQL and MariaDB, SQLite. What two of them share
//! stands beside them.

pub(crate) mod cleaning;
pub(crate) mod current_client;
pub(crate) mod hosts;
pub(crate) mod key_hints;
pub(crate) mod key_poller;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
pub(crate) mod process;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod server_clock;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod session;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod to_the_end;
