//! The transactions of other sessions, as InnoDB lists them. A login needs the privilege PROCESS to see
//! them.
//!
//! InnoDB answers from a copy of its list, and makes a new one only if nobody has read the copy for
//! 100 ms. So the question is asked in a transaction of its own, and an answer counts only if the question
//! itself stands in it. Otherwise it is asked again after a pause, whose length differs from that of
//! others.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Row};
use uuid::Uuid;

use super::connection::MySqlConnection;
use super::error::classify;
use crate::db::running::RunningTransaction;
use crate::db::{DbError, DbErrorKind};

/// After so long nobody may have read the copy, in milliseconds.
const PAUSE: u64 = 110;

/// The longest pause grows by this much with each answer that is too old.
const MORE: u64 = 60;

/// How often an answer may be too old. Then others ask again and again.
const TRIES: u64 = 20;

/// Ids of transactions that have written nothing are zero, or made of an address.
const FIRST_ADDRESS: i64 = 1 << 48;

/// A row of the answer.
struct Listed {
    transaction: RunningTransaction,
    /// Whether it is the transaction of the question.
    is_question: bool,
    is_read_only: bool,
}

impl MySqlConnection {
    /// `None` if the login may not see them, or nobody can at present.
    pub(super) async fn read_running(
        &mut self,
    ) -> Result<Option<Vec<RunningTransaction>>, DbError> {
        for tries in 0..TRIES {
            let listed = match self.list_running().await {
                Ok(listed) => listed,
                Err(error) => {
                    self.send("ROLLBACK").await?;
                    return if error.kind() == DbErrorKind::Denied { Ok(None) } else { Err(error) };
                }
            };
            if listed.iter().any(|of| of.is_question) {
                let others = listed.into_iter().filter(|of| !of.is_question && !of.is_read_only);
                return Ok(Some(others.map(|of| of.transaction).collect()));
            }
            let pause = PAUSE + fastrand::u64(0..=MORE * (tries + 1));
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        Ok(None)
    }

    async fn list_running(&mut self) -> Result<Vec<Listed>, DbError> {
        let question = Uuid::new_v4();
        // Only this makes it a transaction of InnoDB before it asks.
        let sql = format!(
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT; \
             SELECT '{question}', CAST(trx_id AS SIGNED), CAST(trx_mysql_thread_id AS SIGNED), \
             CAST(trx_started AS CHAR), CAST(trx_is_read_only AS SIGNED), \
             CAST(trx_mysql_thread_id = CONNECTION_ID() AND COALESCE(trx_query, '') LIKE '%{question}%' AS SIGNED) \
             FROM information_schema.innodb_trx; COMMIT"
        );
        self.trips += 1;
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut self.inner).await;
        let listed = rows.map_err(classify)?.into_iter().map(|row| {
            let id: i64 = row.try_get_unchecked(1)?;
            let session: i64 = row.try_get_unchecked(2)?;
            let started: String = row.try_get_unchecked(3)?;
            let has_written = id > 0 && id < FIRST_ADDRESS;
            let is_detached = session == 0;
            // A transaction gets its id with its first write, and keeps the session until it is prepared.
            let by_id = has_written.then(|| format!("transaction {id}"));
            let by_session = (!is_detached).then(|| format!("session {session} at {started}"));
            let who = match &by_session {
                Some(session) => session.replace(" at ", " since "),
                None => format!("the prepared transaction {id}"),
            };
            let keys = by_id.into_iter().chain(by_session).collect();
            Ok(Listed {
                transaction: RunningTransaction { keys, has_written, is_detached, who },
                is_read_only: row.try_get_unchecked::<i64, _>(4)? != 0,
                is_question: row.try_get_unchecked::<i64, _>(5)? != 0,
            })
        });
        listed.collect::<Result<_, sqlx::Error>>().map_err(classify)
    }
}
