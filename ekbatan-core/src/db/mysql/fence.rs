//! Raising a fence, by itself or with the read that comes first.
//!
//! Both are statements of one packet. The session is READ COMMITTED and commits each
//! statement by itself, so the read sees the commit that the raise waited for.

use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Either, Row};

use super::MySqlLink;
use super::connection::rolled_back;
use super::decode::decode;
use super::error::classify;
use super::placeholders::written_out;
use super::statement::raise_fence;
use crate::db::{DbError, FenceRaise, Query};
use crate::domain::Value;

/// A hundred years, in microseconds: what a fence may be raised for without leaving the
/// range of dates.
const LONGEST: i64 = 3_155_760_000_000_000;

impl MySqlLink {
    /// The rows that were read, if any were asked for; nothing if a later token stands.
    pub(super) async fn raise_and_read(
        &mut self,
        raise: &FenceRaise,
        read: Option<&Query>,
    ) -> Result<Option<Vec<Vec<Value>>>, DbError> {
        if self.lost {
            return Err(rolled_back());
        }
        let mut sql = raise_fence(&self.syntax, &raise.check, raise.micros().min(LONGEST));
        if let Some(query) = read {
            sql.push_str("; ");
            sql.push_str(&written_out(query)?);
        }
        self.trips += 1;
        let mut answers = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_many(&mut self.inner);
        // The raise is two statements, the second of which answers the token that stands.
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
