//! Migrations: append-only scripts, applied once and recorded.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use sha2::{Digest, Sha256};

use super::eventlog::MIGRATIONS;
use super::{Arg, Connection, Database, DbError, Driver, PooledConnection, Query};
use crate::clock::{Clock, to_micros};
use crate::domain::{Field, FieldError, RowReader, ShardIdentifier, Value};

/// One script.
#[derive(Debug, Clone)]
struct Migration {
    version: i64,
    name: String,
    /// The text per dialect; the text under no name serves every dialect.
    texts: Vec<(Option<String>, String)>,
}

/// The application's migrations.
///
/// A folder holds files named `0001_what_it_does.sql`; where dialects differ, folders
/// `sqlite`, `postgres`, `mysql` and `mariadb` inside it hold them.
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

/// Why the migrations did not all run. Those before the one that failed stay applied. Of the
/// one that failed nothing does, except where the database commits every `CREATE`, `ALTER`
/// and `DROP` by itself, as MySQL and MariaDB do: there the error says so
/// ([`Capabilities::atomic_migrations`](super::Capabilities::atomic_migrations)).
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
    #[error("migration {version} `{name}` failed: {source}{}", remains(*.left_nothing))]
    Failed {
        /// The number.
        version: i64,
        /// The name.
        name: String,
        /// Whether the database undid all of it; otherwise its statements before the one that
        /// failed stay.
        left_nothing: bool,
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

fn remains(left_nothing: bool) -> &'static str {
    match left_nothing {
        true => "",
        false => {
            "; its statements before the one that failed stay, as this database commits them one by \
             one: undo them by hand, or make the script one that can run again, then migrate anew"
        }
    }
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

    /// Adds the text of a script for one dialect: `sqlite`, `postgres`, `mysql` or `mariadb`.
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
            None => self.scripts.push(Migration { version, name, texts: vec![(dialect, sql)] }),
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
        into.push(Migration { version, name: name.to_owned(), texts: vec![(None, text)] });
    }
    Ok(())
}

/// Under which name the framework's own migrations are recorded.
const FRAMEWORK: &str = "ekbatan";
const APPLICATION: &str = "application";

/// The framework's own that a dialect has, append-only.
fn framework(dialect: &'static str) -> Vec<Migration> {
    macro_rules! texts {
        ($file:literal: $($dialect:literal),*) => {
            vec![$((
                Some($dialect.to_owned()),
                include_str!(concat!("migration/framework/", $dialect, "/", $file)).to_owned(),
            )),*]
        };
    }
    macro_rules! own {
        ($version:literal, $name:literal, $file:literal) => {
            own!($version, $name, $file, "postgres", "sqlite", "mysql", "mariadb")
        };
        ($version:literal, $name:literal, $file:literal, $($dialect:literal),*) => {
            Migration {
                version: $version,
                name: $name.to_owned(),
                texts: texts!($file: $($dialect),*),
            }
        };
    }
    let all = vec![
        own!(1, "eventlog", "0001_eventlog.sql"),
        own!(2, "cross_shard_parts", "0002_cross_shard_parts.sql"),
        own!(3, "read_under_fence", "0003_read_under_fence.sql", "postgres"),
    ];
    all.into_iter().filter(|migration| text_for(migration, dialect).is_ok()).collect()
}

fn checksum(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Applies what has not been applied. Every step excludes other starters and looks again what
/// they did, so that any number may start at once.
pub(crate) async fn migrate(
    database: &Database,
    migrations: &Migrations,
    clock: &dyn Clock,
) -> Result<(), MigrationError> {
    let driver = &*database.driver;
    let dialect = driver.capabilities().name;
    let application = migrations.resolve(dialect)?;
    let mut loan = database.primary.checkout("migrate").await?;
    step(&mut loan, async |connection| {
        connection.create_eventlog().await.map_err(MigrationError::from)
    })
    .await?;
    let framework = framework(dialect);
    let own = framework.iter().map(|migration| (FRAMEWORK, migration));
    let theirs = application.iter().map(|migration| (APPLICATION, migration));
    for (source, migration) in own.chain(theirs) {
        step(&mut loan, async |connection| {
            apply(connection, driver, source, migration, clock).await
        })
        .await?;
    }
    loan.done();
    database.forget_tables();
    Ok(())
}

async fn apply(
    connection: &mut dyn Connection,
    driver: &dyn Driver,
    source: &str,
    migration: &Migration,
    clock: &dyn Clock,
) -> Result<(), MigrationError> {
    let Migration { version, name, .. } = migration;
    let text = text_for(migration, driver.capabilities().name)?;
    let checksum = checksum(text);
    let applied = applied(connection, driver).await?;
    if let Some(done) =
        applied.iter().find(|done| done.source == source && done.version == *version)
    {
        if done.checksum == checksum {
            return Ok(());
        }
        return Err(MigrationError::Edited {
            version: *version,
            name: name.clone(),
            database: driver.address().to_owned(),
        });
    }
    let failed = |source| MigrationError::Failed {
        version: *version,
        name: name.clone(),
        left_nothing: driver.capabilities().atomic_migrations,
        source,
    };
    let text = match source {
        FRAMEWORK => driver.syntax().framework_migration(text),
        _ => text.into(),
    };
    connection.script(&text).await.map_err(failed)?;
    let record = [
        Value::Text(recorded_as(source, driver).to_owned()),
        Value::Int(*version),
        Value::Text(name.clone()),
        Value::Text(checksum),
        Value::Timestamp(to_micros(clock.now())),
    ];
    let args =
        MIGRATIONS.columns.iter().zip(record).map(|(column, value)| Arg::One(column.ty, value));
    let record = Query {
        sql: format!(
            "INSERT INTO {} (source, version, name, checksum, applied_date) VALUES ($1, $2, $3, $4, $5)",
            driver.syntax().table(&MIGRATIONS)
        )
        .into(),
        args: args.collect(),
        columns: Vec::new().into(),
    };
    connection.fetch(&record).await.map_err(failed)?;
    tracing::info!(version, name, source, "migrated");
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
    work: impl AsyncFnOnce(&mut dyn Connection) -> Result<(), MigrationError>,
) -> Result<(), MigrationError> {
    let connection = loan.begin()?;
    connection.begin_migration().await?;
    match work(connection).await {
        Ok(()) => Ok(connection.end_migration(true).await?),
        Err(error) => {
            connection.end_migration(false).await?;
            loan.done();
            Err(error)
        }
    }
}

/// A record may be shared by several databases, which it tells apart.
fn recorded_as<'s>(source: &'s str, driver: &'s dyn Driver) -> &'s str {
    if source == APPLICATION { driver.migration_source() } else { source }
}

/// Where every migration stands, without changing anything.
pub(crate) async fn migration_states(
    database: &Database,
    migrations: &Migrations,
) -> Result<Vec<MigrationState>, MigrationError> {
    let dialect = database.driver.capabilities().name;
    let application = migrations.resolve(dialect)?;
    let mut loan = database.primary.checkout("migrations").await?;
    let connection = loan.begin()?;
    let applied = match connection.describe(&MIGRATIONS).await?.is_empty() {
        // No migration ever ran. Not every database says by a code of its own that a table is
        // missing, so it is not found out by asking the table.
        true => Vec::new(),
        false => applied(connection, &*database.driver).await?,
    };
    loan.done();
    let framework = framework(dialect);
    let own = framework.iter().map(|migration| (FRAMEWORK, migration));
    let theirs = application.iter().map(|migration| (APPLICATION, migration));
    let states = own.chain(theirs).map(|(source, migration)| {
        let sum = checksum(text_for(migration, dialect)?);
        let done =
            applied.iter().find(|done| done.source == source && done.version == migration.version);
        Ok(MigrationState {
            source: source.to_owned(),
            version: migration.version,
            name: migration.name.clone(),
            applied_date: done.map(|done| done.applied_date),
            edited: done.is_some_and(|done| done.checksum != sum),
        })
    });
    states.collect()
}

/// What has been applied to this database, in order.
pub(crate) async fn applied(
    connection: &mut dyn Connection,
    driver: &dyn Driver,
) -> Result<Vec<AppliedMigration>, MigrationError> {
    let query = Query {
        sql: format!(
            "SELECT source, version, name, checksum, applied_date FROM {} ORDER BY source DESC, version",
            driver.syntax().table(&MIGRATIONS)
        ).into(),
        args: Vec::<Arg>::new(),
        columns: MIGRATIONS.columns.into(),
    };
    let all: Result<Vec<AppliedMigration>, MigrationError> =
        connection.fetch(&query).await?.into_iter().map(read).collect();
    let ours = all?.into_iter().filter_map(|done| {
        let own = |source: &&str| done.source == recorded_as(source, driver);
        let source = [FRAMEWORK, APPLICATION].into_iter().find(own)?;
        Some(AppliedMigration { source: source.to_owned(), ..done })
    });
    Ok(ours.collect())
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
