//! A connection of SQLite's own library, which runs a statement on the thread that asks for it.
//!
//! Reads by id and commits use it. Everything else runs over sqlx, because a transaction of the
//! transaction manager hands its sqlx connection to the application.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, params_from_iter};

use super::decode::{Cells, bind_query, decode_cells};
use super::error::classify_of_library;
use super::statement::write_row;
use super::syntax::{DECIMAL, by_value};
use crate::db::{ChangeKind, DbError, Query, RowChange, Rows};
use crate::domain::TableKey;

/// SQLite's default: the number of pages in the log from which a commit writes them into the file.
const CHECKPOINT_PAGES: u32 = 1_000;

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
        connection.set_prepared_statement_cache_capacity(1_000);
        connection.create_collation(DECIMAL, by_value)?;
        connection.busy_timeout(options.busy_timeout)?;
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.pragma_update(None, "synchronous", options.synchronous)?;
        let (busy_timeout, patience) = (options.busy_timeout, Patience::Full);
        Ok(Self { connection, busy_timeout, patience, texts: HashMap::new() })
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

    pub(super) fn run(&self, sql: &str, arguments: Cells) -> Result<u64, DbError> {
        let run = || self.connection.prepare_cached(sql)?.execute(params_from_iter(arguments));
        run().map(|changed| changed as u64).map_err(classify_of_library)
    }

    pub(super) fn rows(&self, sql: &str, arguments: Cells) -> Result<Vec<Cells>, DbError> {
        let all = || {
            let mut statement = self.connection.prepare_cached(sql)?;
            let columns = statement.column_count();
            let rows = statement.query_map(params_from_iter(arguments), |row| {
                (0..columns).map(|at| row.get(at)).collect()
            })?;
            rows.collect::<Result<_, rusqlite::Error>>()
        };
        all().map_err(classify_of_library)
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
