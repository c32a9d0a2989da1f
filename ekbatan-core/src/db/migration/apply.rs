//! Applies the migrations that have not run yet.
//!
//! Invariant: each step locks out other processes and then reads what they applied, so any
//! number of processes may migrate at once. No step sees what a script of the application set on its
//! session.

use super::error::MigrationError;
use super::history::{
    AppliedMigration, MigrationState, applied, applied_if_any, record, states_of,
};
use super::resume;
use super::script::{APPLICATION, FRAMEWORK, Migration, Migrations, checksum, without_mark};
use crate::clock::Clock;
use crate::db::{Connection, Database, DbError, DbErrorKind, Driver, PooledConnection};

/// What follows this line in a migration of the framework is sent by itself. A server may refuse it.
const MAY_BE_REFUSED: &str = "-- may be refused:\n";

/// Forgets the tables when `migrate` ends: also after an error, if another process did the work, or
/// if the caller gives up. In each case the tables may have changed.
struct ForgetTables<'d>(&'d Database);

impl Drop for ForgetTables<'_> {
    fn drop(&mut self) {
        self.0.forget_tables();
    }
}

pub(crate) async fn migrate(
    database: &Database,
    migrations: &Migrations,
    clock: &dyn Clock,
) -> Result<(), MigrationError> {
    let _forgotten_at_the_end = ForgetTables(database);
    let driver = &*database.driver;
    let all = migrations.in_order(driver.capabilities().dialect)?;
    let mut loan = database.primary.checkout("migrate").await?;
    // A role that may not create anything may still find that nothing is left to do.
    let applied = applied_if_any(&mut loan, driver).await?;
    warn_of_a_later_framework(&applied, &all);
    let states = states_of(&applied, driver.capabilities().dialect, all.clone())?;
    if states.iter().all(MigrationState::is_done) {
        return Ok(());
    }
    let create = async |connection: &mut dyn Connection| {
        connection.create_eventlog().await?;
        Ok(AfterStep::Clean)
    };
    step(&mut loan, create, |error, _| MigrationError::Database(error)).await?;
    for (source, migration) in &all {
        let work = async |connection: &mut dyn Connection| {
            apply(connection, driver, source, migration, clock).await
        };
        // All statements have run. If they are no single transaction, only what was left open is lost.
        let not_committed = |source, can_resume| MigrationError::Failed {
            version: migration.version,
            name: migration.name.clone(),
            database: driver.address().to_owned(),
            left_nothing: driver.capabilities().atomic_migrations,
            can_resume,
            source,
        };
        step(&mut loan, work, not_committed).await?;
    }
    loan.mark_idle();
    Ok(())
}

/// Warns if a later version of the framework has migrated the database. It is not refused: the two may
/// fit together, and an application that goes back to its release before has to start.
fn warn_of_a_later_framework(applied: &[AppliedMigration], all: &[(&'static str, Migration)]) {
    let known = all.iter().filter(|(source, _)| *source == FRAMEWORK);
    let last_known = known.map(|(_, migration)| migration.version).max();
    let of_framework = applied.iter().filter(|done| done.source == FRAMEWORK);
    if let Some(last) = of_framework.max_by_key(|done| done.version)
        && Some(last.version) > last_known
    {
        tracing::warn!(
            version = last.version,
            name = last.name,
            "a later version of Ekbatan has migrated this database, and this one does not know what it changed; run processes of one version only"
        );
    }
}

/// What a step leaves of its session.
enum AfterStep {
    /// There was nothing to do.
    Nothing,
    Clean,
    /// It ran a script of the application, which may have changed settings.
    RanScript {
        /// Whether the next run goes on behind what has run.
        can_resume: bool,
    },
}

/// Runs `work` while other processes are locked out. A script may run for hours, so there is no
/// limit on its time, nor on that of its commit or rollback.
async fn step(
    loan: &mut PooledConnection,
    work: impl AsyncFnOnce(&mut dyn Connection) -> Result<AfterStep, MigrationError>,
    not_committed: impl FnOnce(DbError, bool) -> MigrationError,
) -> Result<(), MigrationError> {
    let connection = loan.mark_busy()?;
    connection.begin_migration().await?;
    match work(connection).await {
        Ok(after) => {
            let ended = connection.end_migration(true).await;
            match after {
                AfterStep::Nothing => Ok(ended?),
                AfterStep::Clean => ended.map_err(|error| not_committed(error, true)),
                AfterStep::RanScript { can_resume } => {
                    ended.map_err(|error| not_committed(error, can_resume))?;
                    Ok(loan.run(|connection| connection.reset()).await?)
                }
            }
        }
        // The connection is closed, and so the server rolls back.
        Err(error) if error.is_connection_lost() => Err(error),
        // Nothing is left to roll back, and the session may be in a transaction of the script. So the
        // connection is closed here, too.
        Err(error @ MigrationError::EndedTransaction { .. }) => Err(error),
        Err(error) => {
            match roll_back(loan).await {
                Ok(()) => loan.mark_idle(),
                Err(error) => {
                    tracing::warn!(%error, "the rollback failed; the connection is closed")
                }
            }
            Err(error)
        }
    }
}

async fn roll_back(loan: &mut PooledConnection) -> Result<(), DbError> {
    loan.mark_busy()?.end_migration(false).await?;
    loan.run(|connection| connection.reset()).await
}

async fn apply(
    connection: &mut dyn Connection,
    driver: &dyn Driver,
    source: &str,
    migration: &Migration,
    clock: &dyn Clock,
) -> Result<AfterStep, MigrationError> {
    let Migration { version, name, .. } = migration;
    let text = migration.text(driver.capabilities().dialect)?;
    let checksum = checksum(text);
    let applied = applied(connection, driver).await?;
    if let Some(done) =
        applied.iter().find(|done| done.source == source && done.version == *version)
    {
        if done.checksum == checksum {
            return Ok(AfterStep::Nothing);
        }
        return Err(MigrationError::Edited {
            version: *version,
            name: name.clone(),
            database: driver.address().to_owned(),
        });
    }
    let text = match source {
        FRAMEWORK => driver.syntax().framework_migration(text),
        _ => without_mark(text).into(),
    };
    let (required, optional) = match text.split_once(MAY_BE_REFUSED) {
        Some((required, optional)) if source == FRAMEWORK => (required, Some(optional)),
        _ => (&*text, None),
    };
    let left_nothing = driver.capabilities().atomic_migrations;
    let parts = if left_nothing { None } else { resume::statements(source, required) };
    let failed = |source| MigrationError::Failed {
        version: *version,
        name: name.clone(),
        database: driver.address().to_owned(),
        left_nothing,
        can_resume: parts.is_some(),
        source,
    };
    let done = AppliedMigration {
        source: source.to_owned(),
        version: *version,
        name: name.clone(),
        checksum,
        applied_date: clock.now(),
    };
    match &parts {
        Some(parts) => resume::run(connection, driver, &done, parts).await.map_err(failed)?,
        None => connection.script(required).await.map_err(failed)?,
    }
    if source == APPLICATION {
        if left_nothing && !connection.end_script().await.map_err(failed)? {
            return Err(MigrationError::EndedTransaction {
                version: *version,
                name: name.clone(),
                database: driver.address().to_owned(),
                dialect: driver.capabilities().dialect,
            });
        }
        connection.check_migration().await.map_err(failed)?;
    }
    if let Some(optional) = optional
        && let Err(error) = connection.script(optional).await
    {
        if error.is_connection_lost() {
            return Err(failed(error));
        }
        if !driver.syntax().has_run_before(optional, &error) {
            tracing::warn!(%error, version, name, statement = optional.trim(), "the server refused an optional part of a migration; let an administrator run it");
        }
    }
    let recorded = match parts {
        Some(_) => resume::end(connection, driver, &done).await,
        None => match record(connection, driver, done.clone()).await {
            // What the script left, such as LOCK TABLES, may be the cause.
            Err(error) if !left_nothing && !may_have_rolled_back(&error) => {
                connection.leave_script().await.map_err(failed)?;
                record(connection, driver, done).await
            }
            recorded => recorded,
        },
    };
    recorded.map_err(failed)?;
    tracing::info!(version, name, source, database = driver.address(), "migrated");
    Ok(match source {
        APPLICATION => AfterStep::RanScript { can_resume: parts.is_some() },
        _ => AfterStep::Clean,
    })
}

/// Whether the server may have taken back what the script left uncommitted.
fn may_have_rolled_back(error: &DbError) -> bool {
    use DbErrorKind::{Deadlock, LockTimeout, Serialization, Unavailable};
    matches!(error.kind(), Deadlock | LockTimeout | Serialization | Unavailable)
}
