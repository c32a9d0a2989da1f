//! What a database can answer instead of an answer.

use std::error::Error as StdError;
use std::fmt;

/// Why a statement or a connection failed, told apart by SQLSTATE or result code and
/// never by the text of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DbErrorKind {
    /// A unique constraint or primary key already has this value.
    UniqueViolation,
    /// A row refers to one that is not there, or is still referred to.
    ForeignKeyViolation,
    /// A required column got no value.
    NotNullViolation,
    /// A check or exclusion constraint refused the row.
    CheckViolation,
    /// The database chose this transaction to end a deadlock.
    Deadlock,
    /// The transaction could not be put in order with its neighbours.
    Serialization,
    /// A lock was not to be had in time; SQLite's "busy" is one.
    LockTimeout,
    /// The statement ran longer than it may, or was cancelled.
    StatementTimeout,
    /// A value does not fit its column.
    ValueOutOfRange,
    /// The table is not there.
    UndefinedTable,
    /// The column is not there.
    UndefinedColumn,
    /// The database or the transaction takes no writes.
    ReadOnly,
    /// No connection came free in the pool in time.
    PoolTimeout,
    /// The database is not to be reached, or the connection broke.
    Unavailable,
    /// A value read does not fit what the code expects.
    Decode,
    /// Wrong credentials, or no right to do this.
    Denied,
    /// Anything else; the code and the message say more.
    Other,
}

/// A failure of the database, classified. One word wide, as it rides in many results.
#[derive(Debug)]
pub struct DbError(Box<Failure>);

#[derive(Debug)]
struct Failure {
    kind: DbErrorKind,
    message: String,
    code: Option<String>,
    constraint: Option<String>,
    table: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
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
            source: None,
        }))
    }

    /// The kind.
    pub fn kind(&self) -> DbErrorKind {
        self.0.kind
    }

    /// The SQLSTATE or result code, where the database gave one.
    pub fn code(&self) -> Option<&str> {
        self.0.code.as_deref()
    }

    /// The constraint that was violated: its name where the database names it, otherwise
    /// `table.column`.
    pub fn constraint(&self) -> Option<&str> {
        self.0.constraint.as_deref()
    }

    /// The table, where the database names it.
    pub fn table(&self) -> Option<&str> {
        self.0.table.as_deref()
    }

    /// Whether the connection can no longer be used.
    pub fn is_connection_lost(&self) -> bool {
        self.0.kind == DbErrorKind::Unavailable
    }

    /// The same error, naming the database, where the connection to it was lost: of many
    /// databases one wants to know which.
    pub(crate) fn lost_at(mut self, address: &str) -> Self {
        if self.is_connection_lost() && !self.0.message.contains(address) {
            self.0.message = format!("{address}: {}", self.0.message);
        }
        self
    }

    /// A stored value that does not fit the code.
    pub(crate) fn misfit(column: &str, reason: impl fmt::Display) -> Self {
        Self::new(DbErrorKind::Decode, format!("column `{column}` does not fit the code: {reason}"))
    }

    /// The same error, naming the column that the value was meant for.
    pub(crate) fn in_column(mut self, column: &str) -> Self {
        self.0.message = format!("column `{column}`: {}", self.0.message);
        self
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
        self.0.source = Some(Box::new(source));
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
