//! What private servers of every kind share.
//!
//! A [`Product`] defines how one kind of server is prepared, started and recognised; everything
//! else is here.
//!
//! Invariants: a server that `start` returned accepts connections. Dropping the handle removes
//! the server, its processes and its folder. If the test process ends in any other way, `SIGKILL`
//! included, they are removed a moment later.

mod account;
mod error;
mod handle;
mod instance;
mod port;
mod port_file;
mod process;
mod product;
mod programs;
mod reaper;
mod settings;
mod startup;

use uuid::Uuid;

pub(crate) use account::Account;
pub use error::ServerError;
pub(crate) use handle::Handle;
pub(crate) use port::{free as free_port, second as second_port};
pub(crate) use port_file::{data_at, port_file};
pub(crate) use product::{Product, ServerEnv};
pub(crate) use programs::{ProgramSearch, installed_here, usual_places};
pub(crate) use settings::Settings;

/// A unique database name that needs no quoting.
pub(crate) fn fresh_name() -> String {
    format!("test_{}", Uuid::now_v7().simple())
}
