//! The cluster as locks use it: calls to its servers, where its regions are, and rows.

mod calls;
mod connection;
mod error;
mod frame;
mod known_regions;
mod pages;
mod region;
mod registry;
mod rows;
mod service;

pub(crate) use self::calls::Client;
pub(crate) use self::error::{CallError, Effect, in_doubt};
pub(crate) use self::rows::{
    Change, Expected, FAMILY, Found, MARKER, Put, RowOp, STATE, milliseconds,
};
