//! What operators do with deliveries, handlers and remote calls.

pub(crate) mod bulk;
pub(crate) mod deliveries;
pub(crate) mod filtered_rows;
pub(crate) mod handlers;
pub(crate) mod remote_calls;
