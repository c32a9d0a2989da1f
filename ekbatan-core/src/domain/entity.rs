//! The traits of a user's struct and of its id.

use std::fmt;

use uuid::Uuid;

use super::{Event, Field, FieldError, State, Table, Value};

/// A struct that is one row of one table. The framework keeps its version.
///
/// Derive `Entity` for rows without events, `Model` for rows with events and dates. The
/// struct has only the application's fields; version, dates and pending events are in [`Stored`](super::Stored), [`Changed`](super::Changed) and
/// [`New`](super::New).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an entity",
    note = "derive `Model`, or `Entity` for rows without events"
)]
pub trait Entity: Clone + Send + Sync + 'static {
    /// The type of the id.
    type Id: EntityId<Entity = Self>;
    /// The type of `state`.
    type State: State;
    /// The events; [`NoEvent`](super::NoEvent) for an entity without events.
    type Event: Event;

    /// The table.
    const TABLE: &'static Table;

    /// The id.
    fn id(&self) -> Self::Id;

    /// The state.
    fn state(&self) -> &Self::State;

    /// Replaces the state.
    fn set_state(&mut self, state: Self::State);

    /// The struct's fields, in the order of the table's columns.
    fn to_values(&self) -> Result<Vec<Value>, FieldError>;

    /// The struct from a row. The values are in the order of the table's columns.
    fn from_row(row: &mut RowReader<'_>) -> Result<Self, FieldError>;

    /// Changes every field to the value that a database returns after storing it; a JSON field stays as
    /// it is.
    fn normalize(&mut self);
}

/// An id that determines the type of its entity, so that `ctx.get(id)` needs no type argument.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the id of an entity",
    note = "declare the field `id: Id<TheStruct>`, or `id: ShardedId<TheStruct>` for rows that are spread over shards"
)]
pub trait EntityId: Copy + fmt::Display + Send + Sync + 'static {
    /// The entity of the id.
    type Entity: Entity<Id = Self>;
    /// Whether the id contains the shard of its row.
    const CARRIES_SHARD: bool = false;
    /// The UUID in the database.
    fn uuid(&self) -> Uuid;
    /// The id with this UUID.
    fn from_uuid(uuid: Uuid) -> Self;
}

/// An entity that emits events and has dates.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a model",
    note = "derive `Model`; an `Entity` has neither events nor dates"
)]
pub trait Model: Entity {}

/// Reads the values of a row, one column after another.
#[derive(Debug)]
pub struct RowReader<'a> {
    table: &'static Table,
    values: &'a mut [Value],
    next: usize,
}

impl<'a> RowReader<'a> {
    /// A reader over a row of `table`.
    pub fn new(table: &'static Table, values: &'a mut [Value]) -> Self {
        Self { table, values, next: 0 }
    }

    /// The next column's field.
    pub fn read<F: Field>(&mut self) -> Result<F, FieldError> {
        let column = self.table.columns.get(self.next).map_or("?", |column| column.name);
        let value = self
            .values
            .get_mut(self.next)
            .map(|value| std::mem::replace(value, Value::Null))
            .ok_or_else(|| FieldError::new("the row has no such column").at(column))?;
        self.next += 1;
        F::from_value(value).map_err(|error| error.at(column))
    }
}
