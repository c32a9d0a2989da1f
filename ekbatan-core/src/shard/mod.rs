//! The databases that an application has.

mod databases;

pub use databases::{CheckError, ConnectError, Databases};
