//! The core of ekbatan. Users add the facade crate `ekbatan`, whose prelude names what
//! everyday code needs; this crate holds what is behind it.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod clock;
pub mod domain;
