//! Checks fences in a commit, and raises them, alone or together with a read.
//!
//! The raise and the read are statements of one call, because a call costs as much as the work.
//! The raise commits before the read begins, so the read sees every commit that came before the
//! raise.

use std::sync::LazyLock;

use rusqlite::types::Value as SqlValue;
use sqlx::{AssertSqlSafe, Column, Row};

use super::connection::SqliteConnection;
use super::decode::{bind_query, decode, sqlx_arguments};
use super::error::classify;
use super::session::StatementRunner;
use super::syntax::SECONDS;
use crate::db::fence::may_raise_new;
use crate::db::{Arg, DbError, FenceCheck, FenceRaise, Query, Rows};
use crate::domain::{Value, ValueType};

/// Its arguments start at `$2`; `$1` belongs to the read.
static RAISE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "INSERT INTO eventlog_lock_fences AS f (lock_key, token, until) \
         SELECT $2, $3, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', ($4 / 1000000.0) || ' seconds') \
         WHERE {} OR EXISTS (SELECT 1 FROM eventlog_lock_fences t WHERE t.lock_key = $2) \
         ON CONFLICT (lock_key) DO UPDATE SET token = excluded.token, \
         until = CASE WHEN f.token = excluded.token THEN max(f.until, excluded.until) ELSE excluded.until END \
         WHERE f.token <= excluded.token RETURNING token AS ekbatan_raised",
        may_raise_new("$3", SECONDS)
    )
});

/// The column name of the raise's result, which tells it from a row of the read.
const RAISED: &str = "ekbatan_raised";

/// Finds the fence if it holds.
const CHECK: &str = "SELECT 1 FROM eventlog_lock_fences WHERE lock_key = ? AND token = ? \
    AND until > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')";

impl StatementRunner<'_> {
    /// Whether the fence's token is the stored one and its lease has not ended. The caller is the
    /// writer, so the answer stays true until the caller's commit.
    pub(super) async fn fence_holds(&mut self, fence: &FenceCheck) -> Result<bool, DbError> {
        let arguments = vec![SqlValue::Text(fence.key.clone()), SqlValue::Integer(fence.token)];
        Ok(!self.rows(CHECK, arguments).await?.is_empty())
    }
}

impl SqliteConnection {
    /// Raises the fence and then runs `read`, if given. `None` if a later token is stored.
    pub(super) async fn raise_and_read(
        &mut self,
        raise: &FenceRaise,
        read: Option<&Query>,
    ) -> Result<Option<Rows>, DbError> {
        let _writing = self.writer_lock.acquire().await?;
        let nothing = [Arg::One(ValueType::Int, Value::Null)];
        let alone =
            Query { sql: RAISE.as_str().into(), args: nothing.into(), columns: Vec::new().into() };
        let (sql, mut arguments) = match read {
            Some(query) => {
                let (sql, arguments) = bind_query(query)?;
                (format!("{}; {sql}", *RAISE).into(), arguments)
            }
            None => bind_query(&alone)?,
        };
        arguments.push(SqlValue::Text(raise.check.key.clone()));
        arguments.push(SqlValue::Integer(raise.check.token));
        arguments.push(SqlValue::Integer(raise.micros()));
        self.trips += 1;
        let mut rows = sqlx::query_with(AssertSqlSafe(sql), sqlx_arguments(arguments)?)
            .fetch_all(&mut self.inner)
            .await
            .map_err(classify)?;
        // A rejected raise returns no row, but the read returns its rows all the same.
        if rows.first().is_none_or(|row| row.column(0).name() != RAISED) {
            return Ok(None);
        }
        let columns = &read.unwrap_or(&alone).columns;
        rows.drain(1..).map(|row| decode(&row, columns)).collect::<Result<_, _>>().map(Some)
    }
}
