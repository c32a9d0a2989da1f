//! Reads of the rows of one table, and writes outside of actions.
//!
//! `repository` has the entry point. `read`, `write` and `joint_write` have its methods, `condition`,
//! with `bounds`, and `page` their arguments. `scatter` queries many shards, `merge` puts their rows in order,
//! that of `value_order`, and `source` reads from one database.

mod bounds;
mod condition;
mod connective;
mod error;
mod joint_write;
mod merge;
mod page;
mod page_keys;
mod pending;
mod read;
#[allow(clippy::module_inception)] // a file per type, named after the type
mod repository;
mod scatter;
mod source;
mod value_order;
mod write;

pub use condition::{Column, Comparand, Condition};
pub use error::{ReadError, ShardFailure, WriteError};
#[doc(hidden)]
pub use joint_write::JointWrite;
pub use page::{Direction, Page, PageRequest};
pub(crate) use pending::{PendingReads, PendingRow, RowKey};
pub use repository::Repository;
pub use scatter::Reachable;
