//! Turns an entity into a row to write.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use uuid::Uuid;

use super::{ChangeKind, ExpectedRow, RowChange, TableError, TableInfo};
use crate::clock::to_micros;
use crate::domain::{Changed, Dates, Entity, EntityId, FieldError, New, Stored, Table, Value};

/// A row to write, before its values were compared with the table's columns.
#[derive(Debug, Clone)]
pub(crate) struct Staged {
    pub(crate) table: &'static Table,
    pub(crate) kind: ChangeKind,
    pub(crate) id: Uuid,
    /// Whether an id of this table contains the shard of its row.
    pub(crate) carries_shard: bool,
    pub(crate) values: Vec<Value>,
}

/// A row that must be unchanged, before its table was looked up.
#[derive(Debug, Clone)]
pub(crate) struct StagedExpectation {
    pub(crate) table: &'static Table,
    pub(crate) id: Uuid,
    pub(crate) carries_shard: bool,
    pub(crate) version: i64,
    /// The values as they were read, by which the shard is chosen.
    pub(crate) values: Vec<Value>,
    /// Whether the commit keeps others from changing the row until it ends.
    pub(crate) is_locked: bool,
}

impl StagedExpectation {
    /// The expectation of a row in this table.
    pub(crate) fn resolve(self, table: Arc<TableInfo>) -> ExpectedRow {
        let Self { id, version, is_locked, .. } = self;
        ExpectedRow { table, id, version, is_locked }
    }
}

/// A value that cannot be written as a row.
#[derive(Debug)]
pub(crate) enum StageError {
    IdChanged { model: &'static str, id: Uuid },
    Field { model: &'static str, id: Uuid, source: FieldError },
    Table(TableError),
}

/// The row, the value as it will be stored, and the events to store with it.
pub(crate) type StageResult<T> = Result<(Staged, Stored<T>, Vec<<T as Entity>::Event>), StageError>;

/// Stages an insert.
pub(crate) fn stage_new<T: Entity>(new: New<T>, now: DateTime<Utc>) -> StageResult<T> {
    let now = to_micros(now);
    let dates = T::TABLE.dates.map(|_| Dates { created: now, updated: now });
    let (staged, stored) = stage::<T>(new.value, ChangeKind::Insert, 1, 1, dates)?;
    Ok((staged, stored, new.events))
}

/// Stages an update.
pub(crate) fn stage_changed<T: Entity>(changed: Changed<T>, now: DateTime<Utc>) -> StageResult<T> {
    if changed.value.id().uuid() != changed.id.uuid() {
        return Err(StageError::IdChanged { model: T::TABLE.model, id: changed.id.uuid() });
    }
    let dates = changed.dates.map(|dates| Dates { updated: to_micros(now), ..dates });
    let Some(next) = changed.version.checked_add(1) else {
        return Err(StageError::Field {
            model: T::TABLE.model,
            id: changed.id.uuid(),
            source: FieldError::new("it is the largest integer, so the row cannot be changed")
                .at("version"),
        });
    };
    let (staged, stored) =
        stage::<T>(changed.value, ChangeKind::Update, changed.version, next, dates)?;
    Ok((staged, stored, changed.events))
}

/// Stages the deletion of a row at the version that was read.
pub(crate) fn stage_deleted<T: Entity>(row: &Stored<T>) -> Result<Staged, StageError> {
    let value = row.value.clone();
    let (version, dates) = (row.version, row.dates);
    stage::<T>(value, ChangeKind::Delete, version, version, dates).map(|(staged, _)| staged)
}

/// Stages the expectation that a row is unchanged.
pub(crate) fn stage_expected<T: Entity>(read: &Stored<T>) -> Result<StagedExpectation, StageError> {
    let (table, id) = (T::TABLE, read.value.id().uuid());
    let values = read.value.to_values();
    let values = values.map_err(|source| StageError::Field { model: table.model, id, source })?;
    let carries_shard = T::Id::CARRIES_SHARD;
    let version = read.version;
    Ok(StagedExpectation { table, id, carries_shard, version, values, is_locked: true })
}

fn stage<T: Entity>(
    mut value: T,
    kind: ChangeKind,
    guard: i64,
    version: i64,
    dates: Option<Dates>,
) -> Result<(Staged, Stored<T>), StageError> {
    value.normalize();
    let id = value.id().uuid();
    let mut values = value.to_values().map_err(|source| StageError::Field {
        model: T::TABLE.model,
        id,
        source,
    })?;
    values.push(Value::Int(guard));
    if let Some(dates) = dates {
        values.extend([Value::Timestamp(dates.created), Value::Timestamp(dates.updated)]);
    }
    let carries_shard = T::Id::CARRIES_SHARD;
    Ok((
        Staged { table: T::TABLE, kind, id, carries_shard, values },
        Stored { value, version, dates },
    ))
}

/// Adds the table's columns to a staged row, and checks that they can hold its values.
pub(crate) fn resolve(staged: Staged, info: Arc<TableInfo>) -> Result<RowChange, StageError> {
    let Staged { table, kind, id, values, .. } = staged;
    if values.len() != info.columns.len() {
        let reason =
            format!("`to_values` gave {} values for {} columns", values.len(), info.columns.len());
        return Err(StageError::Field {
            model: table.model,
            id,
            source: FieldError::new(reason).at("?"),
        });
    }
    for (column, value) in info.columns.iter().zip(&values) {
        // A database would round silently.
        if let (Some((precision, scale)), Value::Decimal(decimal)) = (column.numeric, value)
            && !fits(decimal, precision, scale)
        {
            let reason = format!(
                "{decimal} does not fit numeric({precision},{scale}) without losing digits; round it in the code, or widen the column"
            );
            let source = FieldError::new(reason).at(&column.name);
            return Err(StageError::Field { model: table.model, id, source });
        }
    }
    Ok(RowChange { table: info, kind, id, values: Arc::new(values), steps: 1 })
}

/// Whether a column of this precision and scale holds the decimal without rounding it.
fn fits(decimal: &Decimal, precision: u32, scale: i32) -> bool {
    let mut digits = decimal.mantissa().unsigned_abs();
    let mut decimals = decimal.scale().cast_signed();
    while digits != 0 && digits.is_multiple_of(10) {
        digits /= 10;
        decimals -= 1;
    }
    let Some(last) = digits.checked_ilog10() else { return true };
    let whole = last.cast_signed() + 1 - decimals;
    decimals <= scale && whole <= precision.cast_signed() - scale
}
