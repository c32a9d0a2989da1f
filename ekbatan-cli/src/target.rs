//! The shards on which the program works.

use std::path::{Path, PathBuf};

use ekbatan::config::{DataSourceConfig, Dialect, EkbatanConfig, ShardingConfig};
use ekbatan::domain::ShardIdentifier;
use ekbatan::events::{DeliveryOperations, EventsError};
use ekbatan::jobs::JobOperations;
use ekbatan::shard::{ConnectError, Databases, Shard};

use crate::failure::Failure;

/// The configuration unless an option names another one.
const DEFAULT_FILE: &str = "config/ekbatan.yml";

/// The shards that a command needs. Others may be down, so the program does not connect to them.
pub enum Scope {
    All,
    Named(String),
    Default,
}

/// The databases, and the shards of them that a command needs.
pub struct Target {
    databases: Databases,
    shards: Vec<Shard>,
}

/// One shard.
pub struct OnShard<'t> {
    pub shard: &'t Shard,
    pub operations: DeliveryOperations,
}

impl OnShard<'_> {
    pub fn identifier(&self) -> ShardIdentifier {
        self.shard.identifier()
    }
}

impl Target {
    pub async fn open(
        file: Option<PathBuf>,
        database: Option<String>,
        eventlog: Option<String>,
        scope: Scope,
    ) -> Result<Self, Failure> {
        let is_address = database.is_some();
        // Not by `requires` and `conflicts_with` of clap, which look at one level of commands only.
        let mut config = match (file, database, eventlog) {
            (Some(file), Some(_), _) => {
                let file = file.display();
                return Err(Failure::usage(format!(
                    "--config {file} and --database are both given; leave out one of them"
                )));
            }
            (_, None, Some(name)) => {
                return Err(Failure::usage(format!(
                    "--eventlog {name} needs --database <URL>; a file says it with the key `eventlog`"
                )));
            }
            (None, Some(url), Some(_)) if !has_eventlogs(&url) => {
                return Err(Failure::usage(
                    "--eventlog is for MySQL and MariaDB; elsewhere the framework's tables are always in `eventlog`",
                ));
            }
            (None, Some(url), Some(name)) => DataSourceConfig::new(url).eventlog(name).into(),
            (None, Some(url), None) => DataSourceConfig::new(url).into(),
            (file, None, None) => load(&file.unwrap_or_else(|| PathBuf::from(DEFAULT_FILE)))?,
        };
        if is_address {
            let wrong = |error| Failure::usage(format!("--database: {error}"));
            config.check_address().map_err(wrong)?;
        } else {
            config.check().map_err(|error| Failure::usage(error.to_string()))?;
        }
        match scope {
            Scope::All => {}
            Scope::Named(named) => {
                keep_only(named_shard(&named, &config.sharding)?, &mut config.sharding)
            }
            Scope::Default => keep_only(config.sharding.default_shard, &mut config.sharding),
        }
        create_no_file(&mut config.sharding);
        let databases = Databases::connect(&config).await.map_err(|error| match error {
            ConnectError::Shards(_) => Failure::failed(format!(
                "{error}; --shard GROUP/MEMBER works on a shard that answers"
            )),
            error => error.into(),
        })?;
        let shards = databases.shards().collect();
        Ok(Self { databases, shards })
    }

    pub fn shards(&self) -> impl Iterator<Item = OnShard<'_>> {
        self.shards.iter().map(|shard| OnShard {
            shard,
            operations: DeliveryOperations::new(&self.databases, shard),
        })
    }

    /// Does something with a row that one of the shards has. `advice` says where such rows are listed.
    pub async fn on_one_shard(
        &self,
        advice: &str,
        work: impl AsyncFn(&OnShard<'_>) -> Result<(), EventsError>,
    ) -> Result<(), Failure> {
        let mut missing = None;
        for on in self.shards() {
            match work(&on).await {
                Err(EventsError::NotFound { what, id, state, .. }) => {
                    missing = Some((what, id, state));
                }
                done => return Ok(done?),
            }
        }
        let Some((what, id, state)) = missing else { return Ok(()) };
        let shards = self.names();
        Err(Failure::failed(format!(
            "there is no {what} {id} on shard {shards} that is {state}; {advice}"
        )))
    }

    pub fn jobs(&self) -> JobOperations {
        JobOperations::new(&self.databases)
    }

    /// The shards by name, for messages.
    pub fn names(&self) -> String {
        let names: Vec<_> = self.shards.iter().map(|of| of.identifier().to_string()).collect();
        names.join(", ")
    }

    pub async fn close(self) {
        self.databases.close().await;
    }
}

fn load(file: &Path) -> Result<EkbatanConfig, Failure> {
    if !file.exists() {
        let file = file.display();
        return Err(Failure::usage(format!(
            "there is no file {file}; name the application's configuration with --config, or a database with --database"
        )));
    }
    EkbatanConfig::load(file).map_err(|error| Failure::usage(error.to_string()))
}

/// Whether a server at this address may have several event logs.
pub fn has_eventlogs(url: &str) -> bool {
    let dialect = DataSourceConfig::new(url).dialect();
    matches!(dialect, Some(Dialect::MySql | Dialect::MariaDb))
}

fn named_shard(named: &str, sharding: &ShardingConfig) -> Result<ShardIdentifier, Failure> {
    let known: Vec<_> = sharding.shards().map(|(shard, _)| shard).collect();
    known.iter().copied().find(|shard| shard.to_string() == named).ok_or_else(|| {
        let are = if known.len() == 1 { "there is" } else { "there are" };
        let known: Vec<_> = known.iter().map(ToString::to_string).collect();
        let known = known.join(", ");
        Failure::usage(format!("there is no shard `{named}`; write GROUP/MEMBER: {are} {known}"))
    })
}

/// Leaves out all other shards.
fn keep_only(shard: ShardIdentifier, sharding: &mut ShardingConfig) {
    sharding.default_shard = shard;
    sharding.groups.retain(|group| group.group == shard.group());
    for group in &mut sharding.groups {
        group.members.retain(|member| member.member == shard.member());
    }
}

/// A file of SQLite that does not exist is a mistake in its name.
fn create_no_file(sharding: &mut ShardingConfig) {
    let members = sharding.groups.iter_mut().flat_map(|group| &mut group.members);
    let databases = members.flat_map(|member| member.configs.values_mut());
    for database in databases.filter(|database| database.dialect() == Some(Dialect::Sqlite)) {
        // It has no file, and is refused under the address that was given.
        if database.url.contains(":memory:") {
            continue;
        }
        let separator = if database.url.contains('?') { '&' } else { '?' };
        database.url = format!("{}{separator}mode=rw", database.url);
    }
}
