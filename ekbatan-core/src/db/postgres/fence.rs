//! Checks fences in a commit, and raises them, alone or together with a read.
//!
//! A commit that checks a fence locks the fence's row in share mode, and a raise waits for that
//! commit. A statement sees only what was committed before it began, so a `SELECT` in the same
//! statement as the raise would not see that commit. The framework's function
//! `eventlog.read_under_fence` raises and then reads; each of its statements has its own
//! snapshot.

use std::sync::LazyLock;

use sqlx::postgres::PgArguments;
use sqlx::{Arguments, AssertSqlSafe};

use super::connection::PostgresConnection;
use super::decode::{bind_arg, decode};
use super::error::classify;
use crate::db::fence::may_raise_new;
use crate::db::{Arg, DbError, FenceRaise, Query, Rows, TableInfo};
use crate::domain::{ColumnDef, Value, ValueType};

/// The function's error code for: a later token is stored, or may have been stored.
const LATER_TOKEN: &str = "KB001";

/// The error codes after which the function is not used any more: wrong isolation level,
/// missing function (its migration has not run yet), a type that is not found by its bare name,
/// a type that changed.
const FUNCTION_UNUSABLE: [&str; 4] = ["KB002", "42883", "42704", "42804"];

/// The seconds since 1970.
const SECONDS: &str = "extract(epoch FROM clock_timestamp())::int8";

/// The row of an old fence is locked where it is looked for: otherwise it could be deleted
/// between the look and the insert, and the insert would raise it anew.
static RAISE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "INSERT INTO eventlog.lock_fences AS f (lock_key, token, until) \
         SELECT $1::text, $2::int8, clock_timestamp() AT TIME ZONE 'UTC' + $3::int8::float8 * interval '1 microsecond' \
         WHERE {} OR EXISTS (SELECT FROM eventlog.lock_fences t WHERE t.lock_key = $1::text FOR KEY SHARE) \
         ON CONFLICT (lock_key) DO UPDATE SET token = excluded.token, \
         until = CASE WHEN f.token = excluded.token THEN greatest(f.until, excluded.until) ELSE excluded.until END \
         WHERE f.token <= excluded.token \
         RETURNING token, CASE WHEN NOT $4::bool THEN set_config('synchronous_commit', 'off', true) END",
        may_raise_new("$2::int8", SECONDS)
    )
});

/// The part of a commit that locks the fences against being raised and finds those that hold.
/// Each argument is an array with one element per fence.
pub(super) fn check(batch: &str, ordinal: &str, key: &str, token: &str) -> String {
    format!(
        "f AS MATERIALIZED (SELECT v.batch, v.ord FROM unnest({batch}, {ordinal}, {key}, {token}) AS v(batch, ord, key, token) \
         JOIN \"eventlog\".\"lock_fences\" t ON t.lock_key = ANY(ARRAY[v.key]) AND t.token = ANY(ARRAY[v.token]) \
         AND t.until > clock_timestamp() AT TIME ZONE 'UTC' ORDER BY v.key FOR SHARE OF t)"
    )
}

impl PostgresConnection {
    pub(super) async fn raise(&mut self, raise: &FenceRaise) -> Result<bool, DbError> {
        let args = arguments(raise).to_vec();
        let columns = vec![ColumnDef::new("token", ValueType::Int)].into();
        let query = Query { sql: RAISE.as_str().into(), args, columns };
        let raised = crate::db::Connection::fetch(self, &query).await?;
        Ok(!raised.is_empty())
    }

    /// Raises a fence and reads the row, in one round trip if the function works.
    pub(super) async fn raise_and_find(
        &mut self,
        raise: &FenceRaise,
        query: &Query,
        table: &TableInfo,
    ) -> Result<Option<Rows>, DbError> {
        if self.fence_function_works {
            match self.find_by_function(raise, query, table).await {
                Err(error) if error.code() == Some(LATER_TOKEN) => return Ok(None),
                Err(error)
                    if error.code().is_some_and(|code| FUNCTION_UNUSABLE.contains(&code)) =>
                {
                    tracing::debug!(%error, "this connection raises fences in a round trip of their own from here on");
                    self.fence_function_works = false;
                }
                found => return found.map(Some),
            }
        }
        if self.raise(raise).await? {
            crate::db::Connection::fetch(self, query).await.map(Some)
        } else {
            Ok(None)
        }
    }

    async fn find_by_function(
        &mut self,
        raise: &FenceRaise,
        query: &Query,
        table: &TableInfo,
    ) -> Result<Rows, DbError> {
        let columns: Vec<String> = (0..)
            .zip(&table.columns)
            .map(|(n, column)| format!("c{n} {}", super::syntax::type_name(column)))
            .collect();
        // The text depends only on the table, so the server prepares it once.
        let sql = format!(
            "SELECT * FROM eventlog.read_under_fence($1, $2, $3, $4, $5, $6) AS t({})",
            columns.join(", ")
        );
        let read = Arg::One(ValueType::Text, Value::Text(query.sql.to_string()));
        let mut bound = PgArguments::default();
        for arg in arguments(raise).iter().chain([&read]).chain(&query.args) {
            bind_arg(&mut bound, arg)?;
        }
        debug_assert_eq!(bound.len(), 6, "a read by id has one argument");
        self.trips += 1;
        let rows = sqlx::query_with(AssertSqlSafe(sql), bound)
            .fetch_all(&mut self.inner)
            .await
            .map_err(classify)?;
        rows.iter().map(|row| decode(row, &query.columns)).collect()
    }
}

/// Key, token, microseconds, and whether the raise waits for the disk.
fn arguments(raise: &FenceRaise) -> [Arg; 4] {
    [
        Arg::One(ValueType::Text, Value::Text(raise.check.key.clone())),
        Arg::One(ValueType::Int, Value::Int(raise.check.token)),
        Arg::One(ValueType::Int, Value::Int(raise.micros())),
        Arg::One(ValueType::Bool, Value::Bool(raise.to_disk)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::fence::is_old;

    /// The migration has the same conditions in words of its own.
    #[test]
    fn the_functions_of_the_migration_have_the_conditions() {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let raise = include_str!("../migration/framework/postgres/0015_raise_locked_fences.sql");
        let delete = include_str!("../migration/framework/postgres/0012_old_fences.sql");
        for (text, condition) in [
            (raise, may_raise_new("fence_token", SECONDS)),
            (
                delete,
                is_old(SECONDS, |seconds| {
                    format!(
                        "until < clock_timestamp() AT TIME ZONE 'UTC' - interval '{seconds} seconds'"
                    )
                }),
            ),
        ] {
            assert!(words(text).contains(&condition), "{condition}");
        }
    }
}
