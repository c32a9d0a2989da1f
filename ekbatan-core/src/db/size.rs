//! The sizes of rows, commits and arguments, and their bounds.
//!
//! Invariant: what exceeds a bound is refused before anything of it is sent, with an error that
//! names the largest value.

use super::eventlog::{EVENTS, IDEMPOTENCY_KEYS};
use super::{Arg, CommitBatch, DbError, DbErrorKind, Query, RowChange};
use crate::config::DataSourceConfig;
use crate::domain::Value;

/// The size of a value without a variable length. It need not be exact: bounds are megabytes.
const FIXED: usize = 16;

fn size_of(value: &Value) -> usize {
    match value {
        Value::Text(text) | Value::Json(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        _ => FIXED,
    }
}

impl RowChange {
    /// The positions of the values that are sent, and their sizes.
    fn sizes(&self) -> impl Iterator<Item = (usize, usize)> {
        let written = self.kind.written(&self.table);
        written.filter_map(|at| Some((at, size_of(self.values.get(at)?))))
    }

    pub(crate) fn size(&self) -> usize {
        self.sizes().map(|(_, size)| size).sum()
    }

    /// The position of the largest value, and its size.
    fn largest(&self) -> (usize, usize) {
        self.sizes().max_by_key(|(_, size)| *size).unwrap_or_default()
    }

    /// Names a value in a message.
    pub(crate) fn name_of(&self, position: usize) -> String {
        let table = self.table.table;
        let column = self.table.columns.get(position).map_or("?", |column| &*column.name);
        let text = |name: &str| {
            let at = table.columns.iter().position(|column| column.name == name)?;
            match self.values.get(at) {
                Some(Value::Text(text)) => Some(text.as_str()),
                _ => None,
            }
        };
        let action = || text("action_name").unwrap_or("?");
        if std::ptr::eq(table, &raw const EVENTS) {
            match column {
                "action_params" => return format!("the parameters of `{}`", action()),
                "payload" => {
                    return match text("event_type") {
                        Some(event) => {
                            format!("the payload of the event `{event}` of `{}`", action())
                        }
                        None => {
                            let called = text("model_type").unwrap_or("?");
                            format!("the parameters of the enqueued call of `{called}`")
                        }
                    };
                }
                _ => {}
            }
        }
        if std::ptr::eq(table, &raw const IDEMPOTENCY_KEYS) && column == "output" {
            return format!("the output of `{}`, stored under its idempotency key,", action());
        }
        format!("column `{column}` of {} {}", table.model, self.id)
    }
}

/// Names the largest value of some rows, and its size.
pub(crate) fn largest<'r>(rows: impl Iterator<Item = &'r RowChange>) -> String {
    let largest = rows.map(|row| (row, row.largest())).max_by_key(|(_, (_, size))| *size);
    largest.map_or_else(String::new, |(row, (at, size))| {
        format!("{} takes {size} bytes", row.name_of(at))
    })
}

impl CommitBatch {
    fn all_rows(&self) -> impl Iterator<Item = &RowChange> {
        self.changes.iter().chain(&self.records)
    }

    pub(crate) fn size(&self) -> usize {
        self.all_rows().map(RowChange::size).sum()
    }
}

impl Query {
    /// The size of the arguments.
    pub(crate) fn size(&self) -> usize {
        self.args.iter().map(size_of_arg).sum()
    }

    /// Names the largest argument, and its size.
    pub(crate) fn largest(&self) -> String {
        let sizes = (1..).zip(self.args.iter().map(size_of_arg));
        let (number, size) = sizes.max_by_key(|(_, size)| *size).unwrap_or((1, 0));
        format!("parameter ${number} of the query takes {size} bytes")
    }
}

fn size_of_arg(arg: &Arg) -> usize {
    match arg {
        Arg::One(_, value) => size_of(value),
        Arg::Many(_, values) => values.iter().map(size_of).sum(),
    }
}

/// The bounds of one database.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SizeLimits {
    row: usize,
    commit: usize,
    parameters: usize,
}

impl SizeLimits {
    /// `parameters` is how many a statement of this database may have.
    pub(crate) fn new(config: &DataSourceConfig, parameters: usize) -> Self {
        Self { row: config.max_row_bytes, commit: config.max_commit_bytes, parameters }
    }

    /// The most bytes of a commit.
    pub(crate) fn commit(&self) -> usize {
        self.commit
    }

    pub(crate) fn check(&self, batch: &CommitBatch) -> Result<(), DbError> {
        let mut total = 0;
        for row in batch.all_rows() {
            let size = row.size();
            total += size;
            if size > self.row {
                let largest = largest(std::iter::once(row));
                return Err(too_large(format!(
                    "{largest}, and its row {size}; max-row-bytes is {}; keep less in a row, or raise the setting",
                    self.row
                )));
            }
        }
        if total > self.commit {
            let largest = largest(batch.all_rows());
            return Err(too_large(format!(
                "the commit takes {total} bytes, and max-commit-bytes is {}; {largest}; write less at once, or raise the setting",
                self.commit
            )));
        }
        Ok(())
    }

    /// Divides rows into parts. One commit can write each part; a row that is too large by itself is a part of its own.
    pub(crate) fn parts(&self, rows: Vec<RowChange>) -> Vec<Vec<RowChange>> {
        let mut parts: Vec<Vec<RowChange>> = Vec::new();
        let mut total = 0;
        for row in rows {
            let size = row.size();
            if parts.is_empty() || total + size > self.commit {
                parts.push(Vec::new());
                total = 0;
            }
            total += size;
            if let Some(part) = parts.last_mut() {
                part.push(row);
            }
        }
        parts
    }

    pub(crate) fn check_query(&self, query: &Query) -> Result<(), DbError> {
        let parameters = query.args.len();
        if parameters > self.parameters {
            return Err(too_large(format!(
                "the query has {parameters} parameters, and this database takes {} at most; `is_in` sends a list as one parameter",
                self.parameters
            )));
        }
        let size = query.size();
        if size > self.commit {
            return Err(too_large(format!(
                "{}, and all parameters {size}; max-commit-bytes is {}; ask for less at once, or raise the setting",
                query.largest(),
                self.commit
            )));
        }
        Ok(())
    }
}

pub(crate) fn too_large(message: String) -> DbError {
    DbError::new(DbErrorKind::TooLarge, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::ChangeKind;
    use crate::db::fixtures::{WALLETS, change, table};

    #[test]
    fn a_delete_is_as_large_as_its_key_and_version() {
        let wallets = table(&WALLETS, |_| "text");
        let long = Value::Text("x".repeat(1_000));
        let values = vec![Value::Null, long, Value::Null, Value::Null, Value::Null];
        let of = |kind| RowChange { values: values.clone().into(), ..change(&wallets, kind) };
        assert_eq!(of(ChangeKind::Insert).size(), 1_000 + 4 * FIXED);
        assert_eq!(of(ChangeKind::Delete).size(), 2 * FIXED);
        assert_eq!(of(ChangeKind::Delete).largest(), (2, FIXED));
    }
}
