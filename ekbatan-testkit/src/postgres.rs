//! Private PostgreSQL servers.
//!
//! Each [`PostgresServer`] is a real server with a folder and a port of its own,
//! reachable from this machine only. What always holds: a server that has been
//! handed out accepts connections; once its handle is dropped, the server, its
//! processes and its folder are gone; and if the test process ends in any other
//! way, `SIGKILL` included, they are gone a moment later.

mod account;
mod cluster;
mod error;
mod processes;
mod programs;
mod reaper;
mod server;
mod settings;
mod waiting;

pub use error::ServerError;
pub use server::PostgresServer;
pub use settings::PostgresServerBuilder;
