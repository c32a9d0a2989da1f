//! Locks that belong to a session of a database server: what PostgreSQL and MySQL share.
//!
//! A [`SessionBackend`] owns one session. Its actor opens the session, and opens it again
//! after it has ended. An actor that ends with its runtime is replaced. [`SessionGrants`] knows
//! what the session holds. What differs between the servers is a [`SessionServer`].
//!
//! Invariants: the server never waits for a lock, it only tries. When this process ends, so
//! does the session, and with it every lock. This process releases a lock when its term ends.
//! If the process stands still, the server ends the session, with all its locks: the server
//! limits how long a session may be idle, and each statement sets this limit to
//! [`SessionGrants::idle_limit`].

// Each server uses only a part of this module.
#![cfg_attr(not(all(feature = "mysql", feature = "postgres")), allow(dead_code))]

mod actor;
mod backend;
mod grants;
mod request;
mod server;

pub(crate) use backend::SessionBackend;
pub(crate) use grants::SessionGrants;
#[cfg(feature = "mysql")]
pub(crate) use request::reply_of;
pub(crate) use request::{
    Forced, ReleaseRequest, Requests, SessionRequest, TakeRequest, TryOutcome,
};
pub(crate) use server::SessionServer;
