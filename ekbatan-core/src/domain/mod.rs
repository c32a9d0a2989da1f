//! The parts of a user's model: ids, fields, states, events, and the wrappers that add the version
//! and the dates of a row.
//!
//! Nothing here depends on a database. A [`Value`] is the neutral form of a field; each dialect
//! converts it for its server.

mod entity;
pub(crate) mod event;
mod field;
mod id;
mod id_generator;
pub(crate) mod json_text;
mod lock_key;
mod namespace;
mod shard_identifier;
mod sharded_id;
mod staging;
mod state;
mod stored;
mod stored_json;
mod table;
mod typed_uuid;
mod value;

pub use entity::{Entity, EntityId, Model, RowReader};
pub(crate) use event::payload_text;
pub use event::{Event, EventName, IntoEvents, NoEvent, PayloadError};
pub use field::{Comparable, Field, FieldError, Json};
pub use id::Id;
pub use id_generator::IdGenerator;
#[cfg(feature = "mysql")]
pub(crate) use json_text::depth;
#[cfg(feature = "postgres")]
pub(crate) use json_text::find_nul;
pub(crate) use json_text::{check_nulls_and_depth, checked_json};
pub use lock_key::{KeyPart, LockKey, LockLevel};
pub(crate) use namespace::namespace_problem;
pub(crate) use shard_identifier::list_shards;
pub use shard_identifier::{ShardIdentifier, ShardIdentifierError};
pub use sharded_id::ShardedId;
pub(crate) use sharded_id::shard_of;
pub use staging::{Addable, Deletable, Updatable};
pub use state::{SoftDelete, State};
pub(crate) use stored::Dates;
pub use stored::{ChangeError, Changed, New, Stored};
pub(crate) use table::TableKey;
pub use table::{ColumnDef, Table};
pub use typed_uuid::ParseIdError;
pub use value::{Value, ValueType};
