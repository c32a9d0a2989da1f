//! The core of ekbatan. Users add the facade crate `ekbatan`, whose prelude names what
//! everyday code needs; this crate holds what is behind it.
//!
//! The modules from bottom to top: `clock`, `error_text`, `domain`, `config`, `db`, `outbox`, `shard`,
//! `repository`, `action`. A module imports only modules below it.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]
// Without a dialect, nothing calls the code that all dialects share.
#![cfg_attr(
    not(any(feature = "sqlite", feature = "postgres", feature = "mysql")),
    allow(dead_code, unused_imports, unused_variables)
)]

// The derives write `::ekbatan_core`, also in this crate's own tests.
extern crate self as ekbatan_core;

pub mod action;
pub mod clock;
pub mod config;
pub mod db;
pub mod domain;
mod error_text;
mod outbox;
pub mod repository;
pub mod shard;

/// What the derives' code and the workspace's other crates need, and users do not.
#[doc(hidden)]
pub mod __private {
    pub use crate::action::read_params;
    pub use crate::db::doorbell::DoorbellMember;
    pub use crate::db::fence::TOKEN_BITS;
    #[cfg(feature = "mysql")]
    pub use crate::db::mysql::server_options as mysql_options;
    #[cfg(feature = "sqlite")]
    pub use crate::db::sqlite::file_options as sqlite_options;
    pub use crate::domain::event::payload_of;
    pub use crate::domain::json_text::checked_json;
    pub use crate::error_text::with_causes;
    pub use crate::outbox::{
        CENTURY, Mark, OldRows, OldStepKey, StepOwner, StoredId, deliveries, job_step_key, step_key,
    };
    pub use chrono;
    pub use serde_json;
}
