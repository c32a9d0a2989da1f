//! The handlers of a node, without their types.

pub(crate) mod any_handler;
pub(crate) mod handler_set;
pub(crate) mod node_handler;
