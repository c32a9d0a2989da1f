//! A connection of SQLite's own library, which runs a statement on the thread that asks for it.
//!
//! Reads by id and commits use it. Everything else runs over sqlx, because a transaction of the
//! transaction manager hands its sqlx connection to the application.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Statement, params_from_iter};

use super::decode::{Cells, bind_query, decode_cells};
use super::error::classify_of_library;
use super::statement::write_row;
use super::syntax::{DECIMAL, by_value};
use crate::db::{ChangeKind, DbError, Query, RowChange, Rows};
use crate::domain::TableKey;

/// SQLite's default: the number of pages in the log from which a commit writes them into the file.
const CHECKPOINT_PAGES: u32 = 1_000;

/// How many prepared statements a connection keeps.
pub(super) const KEPT_STATEMENTS: usize = 250;

/// How many of them may be long. A text depends on its number of rows, and each parameter takes some 100 bytes, so
/// plans of many sizes would fill the memory. Plans of one size find their statements prepared.
const KEPT_LONG_STATEMENTS: usize = 12;

/// The most parameters of a statement that is not long.
const SHORT: usize = 500;

/// Whether the statement with these arguments is long.
pub(super) fn is_long(arguments: &Cells) -> bool {
    arguments.len() > SHORT
}

/// How the library opens a file.
#[derive(Debug, Clone)]
pub(super) struct LibraryOptions {
    /// The path, or a `file:` address if the url has parameters that a path cannot have.
    pub(super) name: String,
    pub(super) read_only: bool,
    /// Whether a file that does not exist is created.
    pub(super) creates: bool,
    pub(super) synchronous: &'static str,
    pub(super) busy_timeout: Duration,
}

/// What a commit does that meets another process or a long log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// Fails at once if another process writes, and leaves the log as it is.
    None,
    /// Waits for at most the busy timeout, and writes a long log into the file.
    Full,
}

pub(super) struct Library {
    connection: Connection,
    busy_timeout: Duration,
    patience: Patience,
    texts: HashMap<(TableKey, ChangeKind), Arc<str>>,
    /// The texts of the long statements that are kept, in the order of their last use.
    long_texts: Vec<String>,
}

impl Library {
    /// Must not run on a thread of the runtime: it waits if another process recovers the file.
    pub(super) fn open(options: &LibraryOptions) -> Result<Self, rusqlite::Error> {
        let mode = if options.read_only {
            OpenFlags::SQLITE_OPEN_READ_ONLY
        } else if options.creates {
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE
        } else {
            OpenFlags::SQLITE_OPEN_READ_WRITE
        };
        let flags = mode | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&options.name, flags)?;
        connection.set_prepared_statement_cache_capacity(KEPT_STATEMENTS);
        connection.create_collation(DECIMAL, by_value)?;
        connection.busy_timeout(options.busy_timeout)?;
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.pragma_update(None, "synchronous", options.synchronous)?;
        let (busy_timeout, patience) = (options.busy_timeout, Patience::Full);
        Ok(Self {
            connection,
            busy_timeout,
            patience,
            texts: HashMap::new(),
            long_texts: Vec::new(),
        })
    }

    /// Reads without waiting for other processes.
    pub(super) fn read(&mut self, query: &Query) -> Result<Rows, DbError> {
        self.set_patience(Patience::None)?;
        let (sql, arguments) = bind_query(query)?;
        let rows = self.rows(&sql, arguments)?;
        rows.into_iter().map(|cells| decode_cells(cells, &query.columns)).collect()
    }

    /// Another number than before if another connection has committed something since.
    pub(super) fn data_version(&self) -> Result<i64, DbError> {
        let asked = self.connection.prepare_cached("PRAGMA data_version");
        let answer = asked.and_then(|mut asked| asked.query_row([], |row| row.get(0)));
        answer.map_err(classify_of_library)
    }

    pub(super) fn has_transaction(&self) -> bool {
        !self.connection.is_autocommit()
    }

    pub(super) fn run(&mut self, sql: &str, arguments: Cells) -> Result<u64, DbError> {
        let changed = self.with_statement(sql, arguments, |statement, arguments| {
            statement.execute(params_from_iter(arguments))
        });
        changed.map(|changed| changed as u64)
    }

    pub(super) fn rows(&mut self, sql: &str, arguments: Cells) -> Result<Vec<Cells>, DbError> {
        self.with_statement(sql, arguments, |statement, arguments| {
            let columns = statement.column_count();
            let rows = statement.query_map(params_from_iter(arguments), |row| {
                (0..columns).map(|at| row.get(at)).collect()
            })?;
            rows.collect::<Result<_, rusqlite::Error>>()
        })
    }

    /// Prepares a statement, or takes it from those that are kept.
    fn with_statement<R>(
        &mut self,
        sql: &str,
        arguments: Cells,
        work: impl FnOnce(&mut Statement<'_>, Cells) -> Result<R, rusqlite::Error>,
    ) -> Result<R, DbError> {
        if is_long(&arguments) {
            self.keep_long(sql);
        }
        let prepared = self.connection.prepare_cached(sql);
        prepared.and_then(|mut it| work(&mut it, arguments)).map_err(classify_of_library)
    }

    /// Lets a long statement stay prepared, in the place of the one that was not used for the longest time.
    fn keep_long(&mut self, sql: &str) {
        let known = self.long_texts.iter().position(|text| text == sql);
        if known.is_none() && self.long_texts.len() == KEPT_LONG_STATEMENTS {
            let oldest = self.long_texts.remove(0);
            if let Ok(oldest) = self.connection.prepare_cached(&oldest) {
                oldest.discard();
            }
        }
        let text = known.map_or_else(|| sql.to_owned(), |at| self.long_texts.remove(at));
        self.long_texts.push(text);
    }

    /// The text that writes one row.
    pub(super) fn write_row(&mut self, change: &RowChange) -> Arc<str> {
        self.texts
            .entry((change.table.table.key(), change.kind))
            .or_insert_with(|| write_row(&change.table, change.kind).into())
            .clone()
    }

    pub(super) fn set_patience(&mut self, patience: Patience) -> Result<(), DbError> {
        if self.patience == patience {
            return Ok(());
        }
        let (timeout, pages) = match patience {
            Patience::None => (Duration::ZERO, 0),
            Patience::Full => (self.busy_timeout, CHECKPOINT_PAGES),
        };
        self.connection
            .busy_timeout(timeout)
            .and_then(|()| self.connection.pragma_update(None, "wal_autocheckpoint", pages))
            .map_err(classify_of_library)?;
        self.patience = patience;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rusqlite::StatementStatus;
    use rusqlite::types::Value as SqlValue;

    use super::*;

    fn library(folder: &Path) -> Library {
        let name = folder.join("a.db").display().to_string();
        let (synchronous, busy_timeout) = ("FULL", Duration::ZERO);
        let options =
            LibraryOptions { name, read_only: false, creates: true, synchronous, busy_timeout };
        Library::open(&options).unwrap()
    }

    fn text(parameters: usize) -> String {
        format!("SELECT {}", vec!["?"; parameters].join(", "))
    }

    fn run(library: &mut Library, parameters: usize) {
        library.rows(&text(parameters), vec![SqlValue::Null; parameters]).unwrap();
    }

    /// Zero if the statement was not kept.
    fn runs(library: &Library, parameters: usize) -> i32 {
        let statement = library.connection.prepare_cached(&text(parameters)).unwrap();
        let runs = statement.get_status(StatementStatus::Run);
        if runs == 0 {
            statement.discard();
        }
        runs
    }

    #[test]
    fn few_long_statements_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut library = library(folder.path());
        let of_short = 1..=100;
        let of_long = SHORT + 1..=SHORT + 20;
        for parameters in of_short.clone().chain(of_long.clone()) {
            run(&mut library, parameters);
        }
        assert!(of_short.clone().all(|parameters| runs(&library, parameters) == 1));
        let kept: Vec<usize> =
            of_long.clone().filter(|parameters| runs(&library, *parameters) == 1).collect();
        assert_eq!(kept, of_long.skip(20 - KEPT_LONG_STATEMENTS).collect::<Vec<_>>());
        // The oldest of them is used again, and so the next one has to go.
        run(&mut library, kept[0]);
        run(&mut library, SHORT + 50);
        assert_eq!([kept[0], kept[1]].map(|parameters| runs(&library, parameters)), [2, 0]);
    }
}
