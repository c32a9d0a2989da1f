//! Opening the lock server that a configuration names.

use std::future::Future;

use ekbatan_core::config::{LockProviderKind, LockSettings};

use crate::{LockError, LockProvider, ProcessBackend};

/// The servers that a [`LockRegistry`](crate::LockRegistry) can open. A crate that adds a
/// provider opens its own and passes all other settings to [`BuiltIn`].
pub trait LockServers: Send + Sync + 'static {
    /// Connects to the server that the settings name, and checks that it can keep locks
    /// safely.
    fn open(
        settings: &LockSettings,
    ) -> impl Future<Output = Result<LockProvider, LockError>> + Send;
}

/// The providers of this crate.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct BuiltIn;

impl LockServers for BuiltIn {
    async fn open(settings: &LockSettings) -> Result<LockProvider, LockError> {
        let provider = match settings.provider {
            LockProviderKind::InProcess => LockProvider::new(ProcessBackend::new(), &settings.zone),
            LockProviderKind::Postgres => postgres(settings).await?,
            LockProviderKind::MySql | LockProviderKind::MariaDb => mysql(settings).await?,
            LockProviderKind::Sqlite => sqlite(settings).await?,
            LockProviderKind::Redis => {
                return not_compiled_in(settings, "add the feature `redis` of the crate `ekbatan`");
            }
            LockProviderKind::Etcd => {
                return not_compiled_in(settings, "add the feature `etcd` of the crate `ekbatan`");
            }
            LockProviderKind::HBase => {
                return not_compiled_in(settings, "add the feature `hbase` of the crate `ekbatan`");
            }
            LockProviderKind::MongoDb => {
                return not_compiled_in(
                    settings,
                    "add the feature `mongodb` of the crate `ekbatan`",
                );
            }
            LockProviderKind::Aerospike => {
                return not_compiled_in(
                    settings,
                    "add the feature `aerospike` of the crate `ekbatan`",
                );
            }
            _ => return not_compiled_in(settings, UNKNOWN),
        };
        Ok(provider.configured(settings))
    }
}

const UNKNOWN: &str = "update the crate `ekbatan`, which does not know it yet";

fn not_compiled_in(
    settings: &LockSettings,
    advice: &'static str,
) -> Result<LockProvider, LockError> {
    Err(LockError::NotCompiledIn { provider: settings.provider, advice })
}

#[cfg(feature = "postgres")]
async fn postgres(settings: &LockSettings) -> Result<LockProvider, LockError> {
    use ekbatan_core::config::LockStrategy;

    let mut database = crate::PostgresLocks::open(&settings.server).await?;
    if settings.asynchronous {
        database = database.asynchronous();
    }
    Ok(match settings.strategy {
        LockStrategy::Session => LockProvider::new(database.session().await?, &settings.zone),
        _ => LockProvider::new(database.leases().await?, &settings.zone),
    })
}

#[cfg(not(feature = "postgres"))]
async fn postgres(settings: &LockSettings) -> Result<LockProvider, LockError> {
    not_compiled_in(settings, "add the feature `postgres` of the crate `ekbatan`")
}

#[cfg(feature = "mysql")]
async fn mysql(settings: &LockSettings) -> Result<LockProvider, LockError> {
    use ekbatan_core::config::LockStrategy;

    let server = crate::MySqlLocks::open(&settings.server).await?;
    Ok(match settings.strategy {
        LockStrategy::Session => LockProvider::new(server.session().await?, &settings.zone),
        _ => LockProvider::new(server.leases().await?, &settings.zone),
    })
}

#[cfg(not(feature = "mysql"))]
async fn mysql(settings: &LockSettings) -> Result<LockProvider, LockError> {
    not_compiled_in(settings, "add the feature `mysql` of the crate `ekbatan`")
}

#[cfg(feature = "mysql")]
impl From<crate::MySqlLocksError> for LockError {
    fn from(error: crate::MySqlLocksError) -> Self {
        use crate::{BackendError, MySqlLocksError};
        match error {
            MySqlLocksError::Unsafe { reason } => Self::Unsafe { reason },
            MySqlLocksError::Backend(source) => Self::Start { source },
            MySqlLocksError::Address(_) => {
                Self::Start { source: BackendError::new(error.to_string()) }
            }
        }
    }
}

#[cfg(feature = "sqlite")]
async fn sqlite(settings: &LockSettings) -> Result<LockProvider, LockError> {
    let file = crate::SqliteLocks::open(&settings.server).await?;
    Ok(LockProvider::new(file.leases().await?, &settings.zone))
}

#[cfg(not(feature = "sqlite"))]
async fn sqlite(settings: &LockSettings) -> Result<LockProvider, LockError> {
    not_compiled_in(settings, "add the feature `sqlite` of the crate `ekbatan`")
}

#[cfg(feature = "sqlite")]
impl From<crate::SqliteLocksError> for LockError {
    fn from(error: crate::SqliteLocksError) -> Self {
        use crate::{BackendError, SqliteLocksError};
        match error {
            SqliteLocksError::Unsafe { reason } => Self::Unsafe { reason },
            SqliteLocksError::Backend(source) => Self::Start { source },
            SqliteLocksError::Address(_) => {
                Self::Start { source: BackendError::new(error.to_string()) }
            }
        }
    }
}

#[cfg(feature = "postgres")]
impl From<crate::PostgresLocksError> for LockError {
    fn from(error: crate::PostgresLocksError) -> Self {
        use crate::{BackendError, PostgresLocksError};
        match error {
            PostgresLocksError::Unsafe { reason } => Self::Unsafe { reason },
            PostgresLocksError::Backend(source) => Self::Start { source },
            PostgresLocksError::Address(_) => {
                Self::Start { source: BackendError::new(error.to_string()) }
            }
        }
    }
}
