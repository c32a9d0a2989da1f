//! The alternatives to ekbatan. They do the same work with the same durability: they
//! change the wallet's row, increment its version and write one event.

mod by_hand;
mod convert;
mod event;
mod retry;
mod sea;
mod statements;

use std::sync::Arc;
use std::time::Duration;

use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{MySqlPool, PgPool, SqlitePool};

use crate::access::{Access, Engine};
use crate::contender::Contender;
use crate::failure::Failure;
use crate::processes::WorkerJob;
use crate::strategy::Strategy;

/// The most connections of a pool.
const MAX_POOL: u32 = 64;
/// Maximum wait for a connection. It is long, because tasks on a hot wallet wait long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Connects the contender that the job asks for.
pub async fn open(job: &WorkerJob) -> Result<Arc<dyn Contender>, Failure> {
    let size = job.tasks.min(MAX_POOL);
    let strategy = job.strategy;
    Ok(match (job.access.engine, strategy) {
        (Engine::Postgres, Strategy::SeaOrm) => {
            Arc::new(sea::postgres::SeaOrm::new(postgres(&job.access, size).await?))
        }
        (Engine::MySql | Engine::MariaDb, Strategy::SeaOrm) => {
            Arc::new(sea::mysql::SeaOrm::new(mysql(&job.access, size).await?))
        }
        (Engine::Sqlite, Strategy::SeaOrm) => {
            Arc::new(sea::sqlite::SeaOrm::new(sqlite(&job.access, size).await?))
        }
        (Engine::Postgres, _) => {
            Arc::new(by_hand::postgres::ByHand::new(postgres(&job.access, size).await?, strategy))
        }
        (Engine::MySql | Engine::MariaDb, _) => {
            Arc::new(by_hand::mysql::ByHand::new(mysql(&job.access, size).await?, strategy))
        }
        (Engine::Sqlite, _) => {
            Arc::new(by_hand::sqlite::ByHand::new(sqlite(&job.access, size).await?, strategy))
        }
    })
}

async fn postgres(access: &Access, size: u32) -> Result<PgPool, Failure> {
    let options = PgPoolOptions::new().max_connections(size).acquire_timeout(PATIENCE);
    Ok(options.connect_with(access.postgres()?).await?)
}

async fn mysql(access: &Access, size: u32) -> Result<MySqlPool, Failure> {
    let options = MySqlPoolOptions::new().max_connections(size).acquire_timeout(PATIENCE);
    Ok(options.connect_with(access.mysql()?).await?)
}

async fn sqlite(access: &Access, size: u32) -> Result<SqlitePool, Failure> {
    let options = SqlitePoolOptions::new().max_connections(size).acquire_timeout(PATIENCE);
    Ok(options.connect_with(access.sqlite()?).await?)
}
