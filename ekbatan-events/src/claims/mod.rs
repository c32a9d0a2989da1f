//! From deliveries that are due to those that may start.

pub(crate) mod candidates;
pub(crate) mod claim;
pub(crate) mod claimed;
pub(crate) mod elsewhere;
pub(crate) mod held_sizes;
pub(crate) mod look_from;
pub(crate) mod poll;
pub(crate) mod put_off;
pub(crate) mod ready_queue;
pub(crate) mod round_writes;
pub(crate) mod rounds;
pub(crate) mod rows_before;
pub(crate) mod streams;
pub(crate) mod unheld;
