//! Which rows other transactions keep locked.

use std::collections::{HashMap, HashSet};

use sqlx::postgres::PgArguments;
use sqlx::{Arguments, AssertSqlSafe};
use uuid::Uuid;

use super::connection::PostgresConnection;
use super::error::classify;
use super::syntax::PostgresSyntax;
use crate::db::{CommitBatch, DbError, DbErrorKind, Syntax, TableInfo};
use crate::domain::TableKey;

/// Selects the rows that a commit could lock now; their locks end with the statement.
fn free_rows(table: &TableInfo) -> String {
    let id = PostgresSyntax.quote(&table.columns[0].name);
    format!(
        "SELECT {id} FROM {} WHERE {id} = ANY($1::uuid[]) FOR NO KEY UPDATE SKIP LOCKED",
        PostgresSyntax.table(table.table)
    )
}

impl PostgresConnection {
    /// Which of the batches update a row that another transaction keeps locked. A row that does
    /// not exist counts as locked, because nothing tells the two apart.
    pub(super) async fn find_locked(
        &mut self,
        batches: &[&CommitBatch],
    ) -> Result<Vec<bool>, DbError> {
        let mut tables: HashMap<TableKey, (&TableInfo, Vec<Uuid>)> = HashMap::new();
        for change in batches.iter().flat_map(|batch| batch.updates()) {
            let entry = tables.entry(change.table.table.key());
            entry.or_insert_with(|| (&change.table, Vec::new())).1.push(change.id);
        }
        let mut free = HashSet::new();
        for (key, (table, ids)) in tables {
            let mut arguments = PgArguments::default();
            arguments
                .add(ids)
                .map_err(|error| DbError::new(DbErrorKind::Other, error.to_string()))?;
            self.trips += 1;
            // Not kept as a prepared statement: it runs seldom.
            let rows: Vec<Uuid> =
                sqlx::query_scalar_with(AssertSqlSafe(free_rows(table)), arguments)
                    .persistent(false)
                    .fetch_all(&mut self.inner)
                    .await
                    .map_err(classify)?;
            free.extend(rows.into_iter().map(|id| (key, id)));
        }
        let is_locked = |batch: &&CommitBatch| {
            batch.updates().any(|change| !free.contains(&(change.table.table.key(), change.id)))
        };
        Ok(batches.iter().map(is_locked).collect())
    }
}
