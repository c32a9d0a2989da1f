//! Checks fences in a commit, and raises them, alone or together with a read.
//!
//! The raise and the read are statements of one packet. The session is READ COMMITTED and in
//! autocommit mode, so the read sees the commit that the raise waited for.

use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Either, Row};

use super::connection::{MySqlConnection, rolled_back_error};
use super::decode::decode;
use super::error::classify;
use super::literal::write_text;
use super::placeholders::written_out;
use super::syntax::{MySqlSyntax, SECONDS};
use crate::db::eventlog::LOCK_FENCES;
use crate::db::fence::may_raise_new;
use crate::db::{DbError, FenceCheck, FenceRaise, Query, Rows, Syntax};

/// Locks a fence against being raised, and returns `number` if the fence holds. Both servers
/// understand this spelling; only MySQL has `FOR SHARE`.
pub(super) fn check(syntax: &MySqlSyntax, fence: &FenceCheck, number: usize) -> String {
    format!(
        "SELECT {number} FROM {} WHERE lock_key = {} AND token = {} AND until > UTC_TIMESTAMP(6) LOCK IN SHARE MODE",
        syntax.table(&LOCK_FENCES),
        text(&fence.key),
        fence.token
    )
}

/// Locks a fence against being raised, and fails unless it holds, as `statement::guard` does.
pub(super) fn guard_fence(syntax: &MySqlSyntax, fence: &FenceCheck) -> String {
    format!(
        "SET @ekbatan_fence = NULL; \
         SELECT token INTO @ekbatan_fence FROM {} WHERE lock_key = {} AND token = {} \
         AND until > UTC_TIMESTAMP(6) LOCK IN SHARE MODE; \
         SET @ekbatan = (SELECT 1 FROM (SELECT 1 UNION ALL SELECT 2) two WHERE @ekbatan_fence IS NULL)",
        syntax.table(&LOCK_FENCES),
        text(&fence.key),
        fence.token
    )
}

/// Raises a fence unless a later token is or may have been stored, and returns the stored token.
/// The row of an old fence is locked where it is looked for: otherwise it could be deleted
/// between the look and the insert, and the insert would raise it anew.
fn raise_fence(syntax: &MySqlSyntax, fence: &FenceCheck, micros: i64) -> String {
    let (table, key, token) = (syntax.table(&LOCK_FENCES), text(&fence.key), fence.token);
    let until = format!("UTC_TIMESTAMP(6) + INTERVAL {micros} MICROSECOND");
    let may_raise_new = may_raise_new(&token.to_string(), SECONDS);
    // `until` first: an assignment sees the results of those to its left.
    format!(
        "INSERT INTO {table} (lock_key, token, until) SELECT {key}, {token}, {until} FROM DUAL \
         WHERE {may_raise_new} OR EXISTS (SELECT 1 FROM {table} t WHERE t.lock_key = {key} FOR UPDATE) \
         ON DUPLICATE KEY UPDATE \
         until = IF(token = {token}, GREATEST(until, {until}), IF(token < {token}, {until}, until)), \
         token = GREATEST(token, {token}); SELECT token FROM {table} WHERE lock_key = {key}"
    )
}

fn text(value: &str) -> String {
    let mut sql = String::new();
    write_text(&mut sql, value);
    sql
}

impl MySqlConnection {
    /// Raises the fence and then runs `read`, if given. `None` if it was not raised.
    pub(super) async fn raise_and_read(
        &mut self,
        raise: &FenceRaise,
        read: Option<&Query>,
    ) -> Result<Option<Rows>, DbError> {
        if self.rolled_back {
            return Err(rolled_back_error());
        }
        let mut sql = raise_fence(&self.syntax, &raise.check, raise.micros());
        if let Some(query) = read {
            sql.push_str("; ");
            sql.push_str(&written_out(query)?);
        }
        self.trips += 1;
        let mut answers = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_many(&mut self.inner);
        // The raise is two statements; the second returns the stored token.
        let (mut done, mut is_raised, mut rows) = (0, false, Vec::new());
        while let Some(answer) = answers.try_next().await.map_err(classify)? {
            match (answer, read) {
                (Either::Left(_), _) => done += 1,
                (Either::Right(row), Some(query)) if done > 1 => {
                    rows.push(decode(&row, &query.columns)?);
                }
                (Either::Right(row), _) => {
                    let token: i64 = row.try_get_unchecked(0).map_err(classify)?;
                    is_raised = token == raise.check.token;
                }
            }
        }
        Ok(is_raised.then_some(rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::mysql::flavour::Flavour;

    #[test]
    fn a_fence_is_checked_in_the_configured_database() {
        let syntax = MySqlSyntax { flavour: Flavour::MySql, eventlog: "log".to_owned() };
        let fence = FenceCheck { key: "a'b".to_owned(), token: 5 };
        assert_eq!(
            check(&syntax, &fence, 8),
            "SELECT 8 FROM `log`.`lock_fences` WHERE lock_key = _utf8mb4 x'612762' AND token = 5 \
             AND until > UTC_TIMESTAMP(6) LOCK IN SHARE MODE"
        );
    }
}
