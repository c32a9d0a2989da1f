//! Which migrations ran on a database, and which are still to run.

use chrono::{DateTime, Utc};

use super::error::MigrationError;
use super::script::{APPLICATION, FRAMEWORK, Migration, Migrations, checksum};
use crate::clock::to_micros;
use crate::db::eventlog::MIGRATIONS;
use crate::db::{Arg, Connection, Database, DbError, Dialect, Driver, PooledConnection, Query};
use crate::domain::{Field, FieldError, RowReader, Value};

/// A migration that has run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AppliedMigration {
    /// `ekbatan` for the framework's own, otherwise `application`.
    pub source: String,
    /// Its number.
    pub version: i64,
    /// Its name.
    pub name: String,
    /// The SHA-256 of its text.
    pub checksum: String,
    /// When it ran.
    pub applied_date: DateTime<Utc>,
}

/// The state of a migration on a database.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrationState {
    /// `ekbatan` for the framework's own, otherwise `application`.
    pub source: String,
    /// Its number.
    pub version: i64,
    /// Its name.
    pub name: String,
    /// When it ran; `None` if it has not run yet.
    pub applied_date: Option<DateTime<Utc>>,
    /// Whether its text was changed after it ran. `migrate` then returns
    /// [`MigrationError::Edited`].
    pub edited: bool,
}

/// The state of every migration. Changes nothing.
pub(crate) async fn migration_states(
    database: &Database,
    migrations: &Migrations,
) -> Result<Vec<MigrationState>, MigrationError> {
    let dialect = database.driver.capabilities().dialect;
    let all = migrations.in_order(dialect)?;
    let mut loan = database.primary.checkout("migrations").await?;
    let applied = applied_if_any(&mut loan, &*database.driver).await?;
    states_of(&applied, dialect, all)
}

/// The migrations that ran on a database, which may be new.
pub(super) async fn applied_if_any(
    loan: &mut PooledConnection,
    driver: &dyn Driver,
) -> Result<Vec<AppliedMigration>, MigrationError> {
    // Whether the table exists is looked up: not every database reports a missing table by an
    // error code of its own.
    let is_new = loan.run(|connection| connection.describe(&MIGRATIONS)).await?.is_empty();
    let applied = if is_new {
        Vec::new()
    } else {
        loan.run(|connection| Box::pin(applied(connection, driver))).await?
    };
    loan.mark_idle();
    Ok(applied)
}

/// The states of these migrations, each with its source.
pub(super) fn states_of(
    applied: &[AppliedMigration],
    dialect: Dialect,
    all: Vec<(&'static str, Migration)>,
) -> Result<Vec<MigrationState>, MigrationError> {
    let states = all.into_iter().map(|(source, migration)| {
        let text = migration.text(dialect)?;
        let checksum = checksum(text);
        let done =
            applied.iter().find(|done| done.source == source && done.version == migration.version);
        // One that has run cannot be corrected any more.
        if let (None, Some(at)) = (done, text.find('\0')) {
            let (version, name) = (migration.version, migration.name);
            return Err(MigrationError::Nul { version, name, at });
        }
        Ok(MigrationState {
            source: source.to_owned(),
            version: migration.version,
            name: migration.name,
            applied_date: done.map(|done| done.applied_date),
            edited: done.is_some_and(|done| done.checksum != checksum),
        })
    });
    states.collect()
}

impl MigrationState {
    /// Whether `migrate` has nothing to do for it, and nothing to refuse.
    pub(super) fn is_done(&self) -> bool {
        self.applied_date.is_some() && !self.edited
    }
}

/// The migrations that ran on this database, in order.
pub(crate) async fn applied(
    connection: &mut dyn Connection,
    driver: &dyn Driver,
) -> Result<Vec<AppliedMigration>, MigrationError> {
    let query = Query {
        sql: format!(
            "SELECT source, version, name, checksum, applied_date FROM {} ORDER BY source DESC, version",
            driver.syntax().table(&MIGRATIONS)
        )
        .into(),
        args: Vec::new(),
        columns: MIGRATIONS.columns.into(),
    };
    let all: Result<Vec<AppliedMigration>, MigrationError> =
        connection.fetch(&query).await?.into_iter().map(read).collect();
    let ours = all?.into_iter().filter_map(|done| {
        let is_source = |source: &&str| done.source == recorded_source(source, driver);
        let source = [FRAMEWORK, APPLICATION].into_iter().find(is_source)?;
        Some(AppliedMigration { source: source.to_owned(), ..done })
    });
    Ok(ours.collect())
}

/// Stores that a migration ran.
pub(super) async fn record(
    connection: &mut dyn Connection,
    driver: &dyn Driver,
    migration: AppliedMigration,
) -> Result<(), DbError> {
    let AppliedMigration { source, version, name, checksum, applied_date } = migration;
    let values = [
        Value::Text(recorded_source(&source, driver).to_owned()),
        Value::Int(version),
        Value::Text(name),
        Value::Text(checksum),
        Value::Timestamp(to_micros(applied_date)),
    ];
    let args = MIGRATIONS.columns.iter().zip(values);
    let insert = Query {
        sql: format!(
            "INSERT INTO {} (source, version, name, checksum, applied_date) VALUES ($1, $2, $3, $4, $5)",
            driver.syntax().table(&MIGRATIONS)
        )
        .into(),
        args: args.map(|(column, value)| Arg::One(column.ty, value)).collect(),
        columns: Vec::new().into(),
    };
    connection.fetch(&insert).await.map(drop)
}

/// The source as it is stored. Databases that share one `eventlog` store different sources for
/// their applications' migrations.
pub(super) fn recorded_source<'s>(source: &'s str, driver: &'s dyn Driver) -> &'s str {
    if source == APPLICATION { driver.migration_source() } else { source }
}

fn read(mut values: Vec<Value>) -> Result<AppliedMigration, MigrationError> {
    let mut row = RowReader::new(&MIGRATIONS, &mut values);
    fn next<F: Field>(row: &mut RowReader<'_>) -> Result<F, FieldError> {
        row.read()
    }
    Ok(AppliedMigration {
        source: next(&mut row)?,
        version: next(&mut row)?,
        name: next(&mut row)?,
        checksum: next(&mut row)?,
        applied_date: next(&mut row)?,
    })
}
