//! Migrations: append-only scripts, applied once and recorded.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use sha2::{Digest, Sha256};

use super::{
    Arg, Connection, Database, DbError, Driver, PooledConnection, Query, TransactionOptions,
};
use crate::clock::Clock;
use crate::domain::{
    ColumnDef, Field, FieldError, RowReader, ShardIdentifier, Table, Value, ValueType,
};

/// One script.
#[derive(Debug, Clone)]
struct Migration {
    source: &'static str,
    version: i64,
    name: String,
    /// The text per dialect; the text under no name serves every dialect.
    texts: Vec<(Option<String>, String)>,
}

/// The application's migrations.
///
/// A folder holds files named `0001_what_it_does.sql`; where dialects differ, folders
/// `postgres` and `sqlite` inside it hold them.
#[derive(Debug, Clone, Default)]
pub struct Migrations {
    folder: Option<PathBuf>,
    scripts: Vec<Migration>,
}

/// A migration that has run.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// Where a migration stands on a database.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrationState {
    /// `ekbatan` for the framework's own, otherwise `application`.
    pub source: String,
    /// Its number.
    pub version: i64,
    /// Its name.
    pub name: String,
    /// When it ran; nothing if it has yet to.
    pub applied_date: Option<DateTime<Utc>>,
    /// Whether its text was changed after it had run, for which `migrate` would refuse.
    pub edited: bool,
}

/// Why the migrations did not all run. Those before the one that failed stay applied; of
/// the one that failed nothing does.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrationError {
    /// The folder cannot be read.
    #[error("the migrations in `{}` cannot be read: {source}", folder.display())]
    Folder {
        /// Which.
        folder: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file's name has no number.
    #[error("`{}` is no migration's name; call it, for example, 0001_create_wallets.sql", .0.display())]
    Name(PathBuf),
    /// Two scripts have one number.
    #[error("two migrations have the number {version}: `{first}` and `{second}`")]
    Twice {
        /// The number.
        version: i64,
        /// The one.
        first: String,
        /// The other.
        second: String,
    },
    /// A script has no text for this dialect.
    #[error("migration {version} `{name}` has no text for {dialect}")]
    NoText {
        /// The number.
        version: i64,
        /// The name.
        name: String,
        /// The dialect.
        dialect: &'static str,
    },
    /// A script was changed after it had run.
    #[error(
        "migration {version} `{name}` was changed after it had run on {database}; restore its text and add a new migration instead"
    )]
    Edited {
        /// The number.
        version: i64,
        /// The name.
        name: String,
        /// Where it had run.
        database: String,
    },
    /// The script failed.
    #[error("migration {version} `{name}` failed: {source}")]
    Failed {
        /// The number.
        version: i64,
        /// The name.
        name: String,
        /// Why.
        source: DbError,
    },
    /// Some shards failed; the others are migrated.
    #[error("{}", .0.iter().map(|(shard, error)| format!("shard {shard}: {error}")).collect::<Vec<_>>().join("\n"))]
    Shards(Vec<(ShardIdentifier, MigrationError)>),
    /// The database failed around the scripts.
    #[error(transparent)]
    Database(#[from] DbError),
    /// The record of migrations is damaged.
    #[error("the record of migrations is damaged: {0}")]
    Record(#[from] FieldError),
}

impl Migrations {
    /// No migrations but the framework's own.
    pub fn none() -> Self {
        Self::default()
    }

    /// The files of a folder.
    pub fn dir(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), scripts: Vec::new() }
    }

    /// Adds a script that every dialect runs.
    #[must_use]
    pub fn script(self, version: i64, name: impl Into<String>, sql: impl Into<String>) -> Self {
        self.add(version, name.into(), None, sql.into())
    }

    /// Adds the text of a script for one dialect, `postgres` or `sqlite`.
    #[must_use]
    pub fn script_for(
        self,
        dialect: &str,
        version: i64,
        name: impl Into<String>,
        sql: impl Into<String>,
    ) -> Self {
        self.add(version, name.into(), Some(dialect.to_owned()), sql.into())
    }

    fn add(mut self, version: i64, name: String, dialect: Option<String>, sql: String) -> Self {
        match self
            .scripts
            .iter_mut()
            .find(|script| script.version == version && script.name == name)
        {
            Some(script) => script.texts.push((dialect, sql)),
            None => self.scripts.push(Migration {
                source: "application",
                version,
                name,
                texts: vec![(dialect, sql)],
            }),
        }
        self
    }

    /// All of them for a dialect, in order.
    fn resolve(&self, dialect: &'static str) -> Result<Vec<Migration>, MigrationError> {
        let mut all = self.scripts.clone();
        if let Some(folder) = &self.folder {
            let own = folder.join(dialect);
            read_folder(if own.is_dir() { &own } else { folder }, &mut all)?;
        }
        all.sort_by_key(|script| script.version);
        match all.windows(2).find(|pair| pair[0].version == pair[1].version) {
            Some([first, second]) => Err(MigrationError::Twice {
                version: first.version,
                first: first.name.clone(),
                second: second.name.clone(),
            }),
            _ => Ok(all),
        }
    }
}

fn read_folder(folder: &Path, into: &mut Vec<Migration>) -> Result<(), MigrationError> {
    let unreadable = |source| MigrationError::Folder { folder: folder.to_owned(), source };
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_none_or(|extension| extension != "sql") {
            continue;
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (number, name) =
            stem.split_once('_').ok_or_else(|| MigrationError::Name(path.clone()))?;
        let version = number
            .trim_start_matches(['v', 'V'])
            .parse()
            .map_err(|_| MigrationError::Name(path.clone()))?;
        let text = std::fs::read_to_string(&path).map_err(unreadable)?;
        into.push(Migration {
            source: "application",
            version,
            name: name.to_owned(),
            texts: vec![(None, text)],
        });
    }
    Ok(())
}

/// The framework's own, append-only.
fn framework() -> Vec<Migration> {
    macro_rules! texts {
        ($file:literal: $($dialect:literal),*) => {
            vec![$((
                Some($dialect.to_owned()),
                include_str!(concat!("../outbox/migrations/", $dialect, "/", $file)).to_owned(),
            )),*]
        };
    }
    let own = |version, name: &str, texts| Migration {
        source: "ekbatan",
        version,
        name: name.to_owned(),
        texts,
    };
    vec![
        own(1, "eventlog", texts!("0001_eventlog.sql": "postgres", "sqlite")),
        own(2, "cross_shard_parts", texts!("0002_cross_shard_parts.sql": "postgres", "sqlite")),
    ]
}

fn checksum(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Applies what has not been applied. Every step is a transaction that excludes other
/// starters and looks again what they did, so that any number may start at once.
pub(crate) async fn migrate(
    database: &Database,
    migrations: &Migrations,
    clock: &dyn Clock,
) -> Result<(), MigrationError> {
    let dialect = database.driver.capabilities().name;
    let application = migrations.resolve(dialect)?;
    let mut loan = database.primary.checkout("migrate").await?;
    step(&mut loan, &*database.driver, async |connection, driver| {
        connection.script(driver.syntax().create_eventlog()).await.map_err(MigrationError::from)
    })
    .await?;
    for migration in framework().iter().chain(&application) {
        let text = text_for(migration, dialect)?;
        let sum = checksum(text);
        step(&mut loan, &*database.driver, async |connection, driver| {
            let applied = applied(connection, driver).await?;
            if let Some(done) = applied.iter().find(|done| done.source == migration.source && done.version == migration.version) {
                if done.checksum == sum {
                    return Ok(());
                }
                return Err(MigrationError::Edited {
                    version: migration.version,
                    name: migration.name.clone(),
                    database: driver.address().to_owned(),
                });
            }
            let failed = |source| MigrationError::Failed { version: migration.version, name: migration.name.clone(), source };
            connection.script(text).await.map_err(failed)?;
            let record = format!(
                "INSERT INTO {} (source, version, name, checksum, applied_date) VALUES ('{}', {}, '{}', '{sum}', '{}')",
                driver.syntax().table(&HISTORY),
                migration.source,
                migration.version,
                migration.name.replace('\'', "''"),
                clock.now().to_rfc3339_opts(chrono::SecondsFormat::Micros, true),
            );
            connection.script(&record).await.map_err(failed)?;
            tracing::info!(version = migration.version, name = %migration.name, source = migration.source, "migrated");
            Ok(())
        })
        .await?;
    }
    loan.done();
    database.forget_tables();
    Ok(())
}

fn text_for<'m>(
    migration: &'m Migration,
    dialect: &'static str,
) -> Result<&'m str, MigrationError> {
    let of =
        |wanted: Option<&str>| migration.texts.iter().find(|(name, _)| name.as_deref() == wanted);
    of(Some(dialect)).or_else(|| of(None)).map(|(_, text)| text.as_str()).ok_or_else(|| {
        MigrationError::NoText { version: migration.version, name: migration.name.clone(), dialect }
    })
}

async fn step(
    loan: &mut PooledConnection,
    driver: &dyn Driver,
    work: impl AsyncFnOnce(&mut dyn Connection, &dyn Driver) -> Result<(), MigrationError>,
) -> Result<(), MigrationError> {
    let connection = loan.begin()?;
    connection.begin(&TransactionOptions::default()).await?;
    let worked = async {
        if let Some(lock) = driver.syntax().migration_lock() {
            connection.script(lock).await?;
        }
        work(connection, driver).await
    }
    .await;
    match worked {
        Ok(()) => Ok(connection.end(true).await?),
        Err(error) => {
            connection.end(false).await?;
            loan.done();
            Err(error)
        }
    }
}

static HISTORY: Table = Table {
    schema: Some("eventlog"),
    name: "migrations",
    model: "migrations",
    columns: &[
        ColumnDef::new("source", ValueType::Text),
        ColumnDef::new("version", ValueType::Int),
        ColumnDef::new("name", ValueType::Text),
        ColumnDef::new("checksum", ValueType::Text),
        ColumnDef::new("applied_date", ValueType::Timestamp),
    ],
    version: None,
    dates: None,
    state: None,
};

/// Where every migration stands, without changing anything.
pub(crate) async fn migration_states(
    database: &Database,
    migrations: &Migrations,
) -> Result<Vec<MigrationState>, MigrationError> {
    let dialect = database.driver.capabilities().name;
    let application = migrations.resolve(dialect)?;
    let mut loan = database.primary.checkout("migrations").await?;
    let connection = loan.begin()?;
    let applied = match connection.describe(&HISTORY).await?.is_empty() {
        // No migration ever ran. Not every database says by a code of its own that a table is
        // missing, so it is not found out by asking the table.
        true => Vec::new(),
        false => applied(connection, &*database.driver).await?,
    };
    loan.done();
    let all = framework();
    let states = all.iter().chain(&application).map(|migration| {
        let sum = checksum(text_for(migration, dialect)?);
        let done = applied
            .iter()
            .find(|done| done.source == migration.source && done.version == migration.version);
        Ok(MigrationState {
            source: migration.source.to_owned(),
            version: migration.version,
            name: migration.name.clone(),
            applied_date: done.map(|done| done.applied_date),
            edited: done.is_some_and(|done| done.checksum != sum),
        })
    });
    states.collect()
}

/// What has been applied, in order.
pub(crate) async fn applied(
    connection: &mut dyn Connection,
    driver: &dyn Driver,
) -> Result<Vec<AppliedMigration>, MigrationError> {
    let query = Query {
        sql: format!(
            "SELECT source, version, name, checksum, applied_date FROM {} ORDER BY source DESC, version",
            driver.syntax().table(&HISTORY)
        ).into(),
        args: Vec::<Arg>::new(),
        columns: HISTORY.columns.into(),
    };
    connection.fetch(&query).await?.into_iter().map(read).collect()
}

fn read(mut values: Vec<Value>) -> Result<AppliedMigration, MigrationError> {
    let mut row = RowReader::new(&HISTORY, &mut values);
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
