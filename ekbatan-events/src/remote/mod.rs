//! Calls to other systems that a handler makes: each is sent at most once, or again with the same key.

pub(crate) mod call;
pub(crate) mod error;
pub(crate) mod request;
pub(crate) mod store;
