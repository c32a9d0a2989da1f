//! The messages of HBase's protocol, as far as locks need them.
//!
//! They are written by hand, so that a build needs no compiler for protocol buffers. The numbers
//! are those of HBase's `.proto` files; fields that nobody reads are left out.

pub(crate) mod admin;
pub(crate) mod data;
pub(crate) mod rpc;
