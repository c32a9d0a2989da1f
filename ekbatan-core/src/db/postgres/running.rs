//! The transactions of other sessions.
//!
//! Every transaction holds a lock on its virtual id from its begin to its end, also before it has
//! written something and got an id of its own. `pg_locks` shows it to every login. A lock is released
//! after the commit is visible.

use sqlx::{AssertSqlSafe, Row};

use super::connection::PostgresConnection;
use super::error::classify;
use crate::db::DbError;
use crate::db::running::RunningTransaction;

/// Sessions of other databases cannot write here, and the server's own workers have no user. A session
/// that is not in `pg_stat_activity` is counted, whatever it is.
const RUNNING: &str = "SELECT l.virtualxid, a.backend_xid::text, false, \
     format('session %s (%s, %s)', l.pid, a.usename, a.application_name) \
     FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid \
     WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid() \
     AND (a.pid IS NULL OR (a.usesysid IS NOT NULL \
     AND a.datid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))) \
     UNION ALL SELECT NULL, p.transaction::text, true, format('the prepared transaction %s', p.gid) \
     FROM pg_prepared_xacts p WHERE p.database = current_database()";

impl PostgresConnection {
    pub(super) async fn read_running(&mut self) -> Result<Vec<RunningTransaction>, DbError> {
        self.trips += 1;
        let rows = sqlx::raw_sql(AssertSqlSafe(RUNNING)).fetch_all(&mut self.inner).await;
        let running = rows.map_err(classify)?.into_iter().map(|row| {
            let virtual_id: Option<String> = row.try_get(0)?;
            let id: Option<String> = row.try_get(1)?;
            let has_written = id.is_some();
            Ok(RunningTransaction {
                // A virtual id has a slash.
                keys: virtual_id.into_iter().chain(id).collect(),
                has_written,
                is_detached: row.try_get(2)?,
                who: row.try_get(3)?,
            })
        });
        running.collect::<Result<_, sqlx::Error>>().map_err(classify)
    }
}
