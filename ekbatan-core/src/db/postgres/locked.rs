//! Which rows other transactions keep locked.

use std::collections::{HashMap, HashSet};

use sqlx::postgres::PgArguments;
use sqlx::{Arguments, AssertSqlSafe};
use uuid::Uuid;

use super::connection::PostgresConnection;
use super::error::classify;
use super::syntax::PostgresSyntax;
use crate::db::{ChangeKind, CommitBatch, DbError, DbErrorKind, Syntax, TableInfo};
use crate::domain::TableKey;

/// Selects the rows that a commit could lock now; their locks end with the statement.
fn free_rows(table: &TableInfo, kind: ChangeKind) -> String {
    let id = PostgresSyntax.quote(&table.columns[0].name);
    let strength = if kind == ChangeKind::Delete { "UPDATE" } else { "NO KEY UPDATE" };
    format!(
        "SELECT {id} FROM {} WHERE {id} = ANY($1::uuid[]) FOR {strength} SKIP LOCKED",
        PostgresSyntax.table(table.table)
    )
}

impl PostgresConnection {
    /// Which of the batches change a row that another transaction keeps locked. A row that does
    /// not exist counts as locked, because nothing tells the two apart.
    pub(super) async fn find_locked(
        &mut self,
        batches: &[&CommitBatch],
    ) -> Result<Vec<bool>, DbError> {
        let mut tables: HashMap<(TableKey, ChangeKind), (&TableInfo, Vec<Uuid>)> = HashMap::new();
        for change in batches.iter().flat_map(|batch| batch.guarded_changes()) {
            let entry = tables.entry((change.table.table.key(), change.kind));
            entry.or_insert_with(|| (&change.table, Vec::new())).1.push(change.id);
        }
        let mut free = HashSet::new();
        for ((key, kind), (table, ids)) in tables {
            let mut arguments = PgArguments::default();
            arguments
                .add(ids)
                .map_err(|error| DbError::new(DbErrorKind::Other, error.to_string()))?;
            self.trips += 1;
            // Not kept as a prepared statement: it runs seldom.
            let rows: Vec<Uuid> =
                sqlx::query_scalar_with(AssertSqlSafe(free_rows(table, kind)), arguments)
                    .persistent(false)
                    .fetch_all(&mut self.inner)
                    .await
                    .map_err(classify)?;
            free.extend(rows.into_iter().map(|id| (key, id)));
        }
        let is_locked = |batch: &&CommitBatch| {
            let mut changes = batch.guarded_changes();
            changes.any(|change| !free.contains(&(change.table.table.key(), change.id)))
        };
        Ok(batches.iter().map(is_locked).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::fixtures::{WALLETS, table};

    #[test]
    fn a_row_that_others_refer_to_is_free_for_an_update_and_not_for_a_delete() {
        let wallets = table(&WALLETS, |_| "uuid");
        let free = |kind| free_rows(&wallets, kind);
        assert_eq!(
            free(ChangeKind::Update),
            "SELECT \"id\" FROM \"wallets\" WHERE \"id\" = ANY($1::uuid[]) FOR NO KEY UPDATE SKIP LOCKED"
        );
        assert!(free(ChangeKind::Delete).ends_with(" FOR UPDATE SKIP LOCKED"));
    }
}
