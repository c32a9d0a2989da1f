//! Looks into the queues of the framework, by small parts of their indexes.

use std::time::Instant;

use sqlx::AssertSqlSafe;

use super::connection::PostgresConnection;
use super::decode::decode;
use super::error::classify;
use super::literal::inlined;
use crate::db::{Connection, DbError, Query, Rows};

impl PostgresConnection {
    pub(super) async fn look_by_index(&mut self, query: &Query) -> Result<Rows, DbError> {
        let is_planned = self.looks.plan(&query.sql);
        let began = Instant::now();
        let found =
            if is_planned { self.look_planned(query).await } else { self.fetch(query).await };
        match (is_planned, &found) {
            (true, Ok(_)) => self.looks.note_planned(began.elapsed()),
            (true, Err(_)) => {}
            (false, _) => self.looks.note_prepared(&query.sql, began.elapsed()),
        }
        found
    }

    async fn look_planned(&mut self, query: &Query) -> Result<Rows, DbError> {
        // One text is one transaction, so the setting ends with it.
        let text = format!("SET LOCAL enable_seqscan = off; {}", inlined(query)?);
        self.trips += 1;
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut self.inner).await;
        rows.map_err(classify)?.iter().map(|row| decode(row, &query.columns)).collect()
    }
}
