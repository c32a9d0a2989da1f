//! Where the strategies that need locks take their leases.

use ekbatan::lock::{LockProvider, PostgresLocks, ProcessBackend};
use ekbatan_lock_redis::RedisBackend;
use serde::{Deserialize, Serialize};
use sqlx::ConnectOptions;

use crate::access::Access;
use crate::failure::Failure;

/// The most connections of the pool of locks.
const LOCK_CONNECTIONS: usize = 4;

/// Where leases are taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockPlace {
    Process,
    Postgres,
    PostgresLease,
    /// A private server, not started yet.
    Redis,
    RedisAt(String),
}

impl LockPlace {
    /// The name on the command line and in the results. It contains no URL, which may
    /// contain a password.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Postgres => "postgres",
            Self::PostgresLease => "postgres-lease",
            Self::Redis | Self::RedisAt(_) => "redis",
        }
    }

    /// Connects to the locks. `access` is the database, for locks that live in it.
    pub async fn connect(&self, access: &Access) -> Result<LockProvider, Failure> {
        let zone = "compare";
        Ok(match self {
            Self::Process => LockProvider::new(ProcessBackend::new(), zone),
            Self::Postgres => LockProvider::new(postgres(access).await?.session().await?, zone),
            Self::PostgresLease => LockProvider::new(postgres(access).await?.leases().await?, zone),
            Self::RedisAt(url) => {
                LockProvider::new(RedisBackend::connect(url, RedisBackend::NAMESPACE).await?, zone)
            }
            Self::Redis => return Err("the server of the locks was not started".into()),
        })
    }
}

/// The locks in the same database. Their driver takes only a URL, so the URL gets the
/// user and password, and loses the options of sqlx.
async fn postgres(access: &Access) -> Result<PostgresLocks, Failure> {
    let mut url = access.postgres()?.to_url_lossy();
    url.set_query(None);
    Ok(PostgresLocks::connect(url.as_str(), LOCK_CONNECTIONS).await?)
}
