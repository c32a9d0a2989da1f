//! Migrations on all shards: shards concurrently, each in order.

use super::Databases;
use super::shards::visit;
use crate::db::{
    AppliedMigration, MigrationError, MigrationState, Migrations, applied, migrate,
    migration_states,
};
use crate::domain::ShardIdentifier;

/// The state of the migrations of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardMigrations {
    /// The shard.
    pub shard: ShardIdentifier,
    /// All migrations, in the order in which they run.
    pub migrations: Vec<MigrationState>,
}

impl Databases {
    /// Applies the framework's migrations, then the application's, to the primary of every
    /// shard: shards concurrently, each in order. Several processes may do so at once.
    ///
    /// A failed shard does not stop the others. Call it again after the problem is fixed.
    pub async fn migrate(&self, migrations: &Migrations) -> Result<(), MigrationError> {
        let done = self.shards.all().map(|database| async {
            let done = migrate(database, migrations, &*self.clock).await;
            (database.shard, done)
        });
        self.all_or_failures(visit(done.collect()).await).map(drop)
    }

    /// The migrations that were applied to the default shard.
    pub async fn migrations(&self) -> Result<Vec<AppliedMigration>, MigrationError> {
        let database = self.shards.default();
        let mut loan = database.primary.checkout("migrations").await?;
        let driver = &*database.driver;
        let applied = loan.run(|connection| Box::pin(applied(connection, driver))).await;
        loan.mark_idle();
        applied
    }

    /// The state of every migration on every shard. Changes nothing, not even an empty database.
    pub async fn migration_status(
        &self,
        migrations: &Migrations,
    ) -> Result<Vec<ShardMigrations>, MigrationError> {
        let states = self.shards.all().map(|database| async {
            let shard = database.shard;
            let states = migration_states(database, migrations).await;
            (shard, states.map(|migrations| ShardMigrations { shard, migrations }))
        });
        self.all_or_failures(visit(states.collect()).await)
    }

    fn all_or_failures<R>(
        &self,
        answers: Vec<(ShardIdentifier, Result<R, MigrationError>)>,
    ) -> Result<Vec<R>, MigrationError> {
        let mut done = Vec::with_capacity(answers.len());
        let mut failures = Vec::new();
        for (shard, answer) in answers {
            match answer {
                Ok(answer) => done.push(answer),
                Err(error) if self.shards.is_single() => return Err(error),
                Err(error) => failures.push((shard, error)),
            }
        }
        if failures.is_empty() { Ok(done) } else { Err(MigrationError::Shards(failures)) }
    }
}
