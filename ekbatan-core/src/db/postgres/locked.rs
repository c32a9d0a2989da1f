//! Which rows other transactions keep locked.

use std::collections::{HashMap, HashSet};

use sqlx::{AssertSqlSafe, Row};
use uuid::Uuid;

use super::connection::PostgresConnection;
use super::error::classify;
use super::syntax::PostgresSyntax;
use crate::db::{ChangeKind, CommitBatch, DbError, DbErrorKind, Syntax, TableInfo};
use crate::domain::TableKey;

/// Selects the rows that a commit could lock now. The text is one transaction, so their locks and the
/// setting end with it. Without the setting it would wait for a table that is locked as a whole.
fn free_rows(table: &TableInfo, kind: ChangeKind, ids: &[Uuid]) -> String {
    let id = PostgresSyntax.quote(&table.columns[0].name);
    let ids: Vec<String> = ids.iter().map(Uuid::to_string).collect();
    let strength = if kind == ChangeKind::Delete { "UPDATE" } else { "NO KEY UPDATE" };
    format!(
        "SET LOCAL lock_timeout = 1; \
         SELECT {id} FROM {} WHERE {id} = ANY('{{{}}}'::uuid[]) FOR {strength} SKIP LOCKED",
        PostgresSyntax.table(table.table),
        ids.join(",")
    )
}

impl PostgresConnection {
    /// Which of the batches change a row that another transaction keeps locked, perhaps with its whole
    /// table. A row that does not exist counts as locked, because nothing tells the two apart.
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
            match self.find_free(&free_rows(table, kind, &ids)).await {
                Ok(ids) => free.extend(ids.into_iter().map(|id| (key, id))),
                Err(error) if error.kind() == DbErrorKind::LockTimeout => {}
                Err(error) => return Err(error),
            }
        }
        let is_locked = |batch: &&CommitBatch| {
            let mut changes = batch.guarded_changes();
            changes.any(|change| !free.contains(&(change.table.table.key(), change.id)))
        };
        Ok(batches.iter().map(is_locked).collect())
    }

    async fn find_free(&mut self, sql: &str) -> Result<Vec<Uuid>, DbError> {
        self.trips += 1;
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut self.inner).await;
        let ids = rows.map_err(classify)?.into_iter().map(|row| row.try_get(0));
        ids.collect::<Result<_, sqlx::Error>>().map_err(classify)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::fixtures::{WALLETS, table};

    #[test]
    fn a_row_that_others_refer_to_is_free_for_an_update_and_not_for_a_delete() {
        let wallets = table(&WALLETS, |_| "uuid");
        let free = |kind| free_rows(&wallets, kind, &[Uuid::nil(), Uuid::max()]);
        assert_eq!(
            free(ChangeKind::Update),
            "SET LOCAL lock_timeout = 1; SELECT \"id\" FROM \"wallets\" WHERE \"id\" = \
             ANY('{00000000-0000-0000-0000-000000000000,ffffffff-ffff-ffff-ffff-ffffffffffff}'::uuid[]) \
             FOR NO KEY UPDATE SKIP LOCKED"
        );
        assert!(free(ChangeKind::Delete).ends_with(" FOR UPDATE SKIP LOCKED"));
    }
}
