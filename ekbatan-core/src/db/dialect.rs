//! Chooses the dialect that a url names.

use std::sync::Arc;

use super::{DbError, DbErrorKind, Driver};
use crate::config::DataSourceConfig;

/// The driver for a url. Opens no connection.
pub(crate) fn driver_for(
    primary: &DataSourceConfig,
    replica: Option<&DataSourceConfig>,
) -> Result<Arc<dyn Driver>, DbError> {
    let url = &primary.url;
    if replica.is_some() && url.starts_with("sqlite") {
        let why = "SQLite has no replicas; leave the replica out: readers of the file have connections of their own";
        return Err(DbError::new(DbErrorKind::Other, why));
    }
    if replica.is_some_and(|replica| replica.maximum_pool_size == 0) {
        return Err(DbError::new(
            DbErrorKind::Other,
            "the replica's maximum-pool-size is 0; it must be at least 1",
        ));
    }
    let scheme = url.split(':').next().unwrap_or_default();
    #[allow(unreachable_patterns)] // the last patterns are reached if a feature is off
    match scheme {
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Arc::new(super::sqlite::SqliteDriver::new(primary)?)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            Ok(Arc::new(super::postgres::PostgresDriver::new(primary, replica)?))
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => Ok(Arc::new(super::mysql::MySqlDriver::new(primary, replica)?)),
        "postgres" | "postgresql" | "sqlite" | "mysql" | "mariadb" => {
            let feature = match scheme {
                "postgresql" => "postgres",
                "mariadb" => "mysql",
                other => other,
            };
            Err(DbError::new(
                DbErrorKind::Other,
                format!(
                    "this build leaves out `{scheme}:`; enable the feature `{feature}` of the crate `ekbatan`"
                ),
            ))
        }
        other => Err(DbError::new(
            DbErrorKind::Other,
            format!(
                "`{other}:` names no supported database; write sqlite:FILE or postgres://USER:PASSWORD@HOST:PORT/DATABASE, or the same with mysql: or mariadb:"
            ),
        )),
    }
}
