//! Errors of a database.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// Why a statement or a connection failed. It is derived from the SQLSTATE or result code, never
/// from the text of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DbErrorKind {
    /// A unique constraint or primary key already has this value.
    UniqueViolation,
    /// A row refers to a missing row, or is still referred to.
    ForeignKeyViolation,
    /// A required column has no value.
    NotNullViolation,
    /// A check or exclusion constraint rejects the row.
    CheckViolation,
    /// The database chose this transaction to end a deadlock.
    Deadlock,
    /// The transaction cannot be serialized with concurrent ones.
    Serialization,
    /// A lock was not granted in time, SQLite's "busy" included.
    LockTimeout,
    /// The statement exceeded its timeout, or was cancelled.
    StatementTimeout,
    /// A value does not fit its column.
    ValueOutOfRange,
    /// A row, a commit or the parameters of a query exceed a configured bound. Nothing was sent.
    TooLarge,
    /// The table does not exist.
    UndefinedTable,
    /// The column does not exist.
    UndefinedColumn,
    /// The database or the transaction is read-only.
    ReadOnly,
    /// The write would commit beside a transaction that its own task has open.
    OpenTransaction,
    /// The pool had no free connection in time.
    PoolTimeout,
    /// Too many commits wait for a lane already.
    Overloaded,
    /// The database cannot be reached, or the connection broke.
    Unavailable,
    /// A stored value does not fit what the code expects.
    Decode,
    /// Wrong credentials, or a missing privilege.
    Denied,
    /// Anything else; see the code and the message.
    Other,
}

/// A classified failure of the database. It is one word wide, because many results carry it.
#[derive(Debug)]
pub struct DbError(Box<Failure>);

#[derive(Debug, Clone)]
struct Failure {
    kind: DbErrorKind,
    message: String,
    code: Option<String>,
    constraint: Option<String>,
    table: Option<String>,
    turn: Option<usize>,
    is_mistake: bool,
    was_undone: bool,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl DbError {
    /// An error of this kind.
    pub fn new(kind: DbErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Failure {
            kind,
            message: message.into(),
            code: None,
            constraint: None,
            table: None,
            turn: None,
            is_mistake: false,
            was_undone: false,
            source: None,
        }))
    }

    /// The kind.
    pub fn kind(&self) -> DbErrorKind {
        self.0.kind
    }

    /// The SQLSTATE or result code, if the database sent one.
    pub fn code(&self) -> Option<&str> {
        self.0.code.as_deref()
    }

    /// The violated constraint: its name if the database sends it, otherwise `table.column`.
    pub fn constraint(&self) -> Option<&str> {
        self.0.constraint.as_deref()
    }

    /// The table, if the database names it.
    pub fn table(&self) -> Option<&str> {
        self.0.table.as_deref()
    }

    /// Whether the connection can no longer be used.
    pub fn is_connection_lost(&self) -> bool {
        self.0.kind == DbErrorKind::Unavailable && !self.0.was_undone
    }

    /// Whether no connection can be opened before somebody changes the settings or the server.
    pub(crate) fn is_mistake(&self) -> bool {
        self.0.is_mistake
    }

    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn into_mistake(mut self) -> Self {
        self.0.is_mistake = true;
        self
    }

    /// The same error; the message says more at its end.
    pub(crate) fn and(mut self, more: &str) -> Self {
        self.0.message.push_str(more);
        self
    }

    /// A trigger has suppressed a row of a commit. `table` names several tables if the database does not say
    /// which of them has the trigger.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn suppressed(table: &str) -> Self {
        let message = format!(
            "a trigger of the table `{table}` suppressed the change of a row, so nothing was written; \
             let the trigger raise an error, or drop it"
        );
        Self::new(DbErrorKind::Other, message)
    }

    /// The same error of a commit that is known to be undone. The connection can still be used.
    #[cfg(feature = "sqlite")]
    pub(crate) fn undone(mut self) -> Self {
        self.0.was_undone = true;
        self.and("; nothing was written")
    }

    /// The same error; if the database is unavailable, the message names it, because an application may have
    /// several.
    pub(crate) fn lost_at(mut self, address: &str) -> Self {
        if self.kind() == DbErrorKind::Unavailable && !self.0.message.contains(address) {
            self.0.message = format!("{address}: {}", self.0.message);
        }
        self
    }

    /// The same error; if a server refused a write because it is read-only, the error of a lost
    /// connection.
    pub(crate) fn read_only_is_lost(mut self) -> Self {
        if self.0.kind == DbErrorKind::ReadOnly {
            self.0.kind = DbErrorKind::Unavailable;
            self.0.message =
                format!("the server does not accept writes any more: {}", self.0.message);
        }
        self
    }

    /// The same error for another caller, with its code and its cause.
    pub(crate) fn copy(&self) -> Self {
        Self(self.0.clone())
    }

    /// The server was asked what committed, and is read-only.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn may_be_standby() -> Self {
        let why = "it is read-only, and may be a standby that does not show every commit yet";
        Self::new(DbErrorKind::ReadOnly, why)
    }

    /// A stored value that does not fit the code.
    pub(crate) fn misfit(column: &str, reason: impl fmt::Display) -> Self {
        Self::new(DbErrorKind::Decode, format!("column `{column}` does not fit the code: {reason}"))
    }

    /// The same error; the message says first where it happened.
    pub(crate) fn at(mut self, place: impl fmt::Display) -> Self {
        self.0.message = format!("{place}: {}", self.0.message);
        self
    }

    /// The same error; the message names the column of the value.
    pub(crate) fn in_column(self, column: &str) -> Self {
        self.at(format_args!("column `{column}`"))
    }

    /// The turn of a group's batch that failed, if that is known.
    pub(crate) fn turn(&self) -> Option<usize> {
        self.0.turn
    }

    pub(crate) fn at_turn(mut self, turn: usize) -> Self {
        self.0.turn = Some(turn);
        self
    }

    /// A row that a turn updates is not at the version that the turn before it left.
    pub(crate) fn stale_turn(turn: usize) -> Self {
        Self::new(DbErrorKind::Serialization, "a row of a group was changed by others")
            .at_turn(turn)
    }

    pub(crate) fn with_code(mut self, code: impl Into<String>) -> Self {
        self.0.code = Some(code.into());
        self
    }

    pub(crate) fn with_constraint(mut self, constraint: Option<impl Into<String>>) -> Self {
        self.0.constraint = constraint.map(Into::into);
        self
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn with_table(mut self, table: Option<impl Into<String>>) -> Self {
        self.0.table = table.map(Into::into);
        self
    }

    pub(crate) fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }
}

impl fmt::Display for DbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if let Some(constraint) = &self.0.constraint {
            write!(f, " (constraint `{constraint}`)")?;
        }
        if let Some(code) = &self.0.code {
            write!(f, " [{code}]")?;
        }
        Ok(())
    }
}

impl StdError for DbError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}

/// The first characters of a text, in quotes.
pub(crate) fn beginning(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{:?}..", &text[..end]),
        None => format!("{text:?}"),
    }
}
