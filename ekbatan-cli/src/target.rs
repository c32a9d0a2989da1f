//! The shards on which the program works.

use std::path::PathBuf;

use ekbatan::config::EkbatanConfig;
use ekbatan::domain::ShardIdentifier;
use ekbatan::events::DeliveryOperations;
use ekbatan::jobs::JobOperations;
use ekbatan::shard::{Databases, Shard};

use crate::failure::Failure;

/// The databases, and the shards of them that were named.
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
        file: PathBuf,
        database: Option<String>,
        shard: Option<String>,
    ) -> Result<Self, Failure> {
        let config = match database {
            Some(url) => EkbatanConfig::single(url),
            None if !file.exists() => {
                let file = file.display();
                return Err(Failure::usage(format!(
                    "there is no file {file}; name the application's configuration with --config, or a database with --database"
                )));
            }
            None => {
                EkbatanConfig::load(&file).map_err(|error| Failure::usage(error.to_string()))?
            }
        };
        config.check().map_err(|error| Failure::usage(error.to_string()))?;
        let known: Vec<_> = config.sharding.shards().map(|(shard, _)| shard.to_string()).collect();
        if let Some(shard) = shard.as_ref().filter(|shard| !known.contains(shard)) {
            let known = known.join(", ");
            return Err(Failure::usage(format!("there is no shard `{shard}`; there are {known}")));
        }
        let databases = Databases::connect(&config).await?;
        let is_named =
            |of: &Shard| shard.as_ref().is_none_or(|named| *named == of.identifier().to_string());
        let shards = databases.shards().filter(is_named).collect();
        Ok(Self { databases, shards })
    }

    pub fn shards(&self) -> impl Iterator<Item = OnShard<'_>> {
        self.shards.iter().map(|shard| OnShard {
            shard,
            operations: DeliveryOperations::new(&self.databases, shard),
        })
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
