//! The read of one row by its id.

use std::sync::Arc;

use tokio::runtime::Handle;
use uuid::Uuid;

use super::group::GroupTask;
use super::waiting::{Admission, FoldKey, FoundRow};
use crate::db::{Database, Route, TableInfo};

impl Database {
    /// The row of a table with this id, if there is one that is not deleted.
    pub(crate) async fn find(
        self: &Arc<Self>,
        table: &Arc<TableInfo>,
        id: Uuid,
        route: Route,
        holder: &'static str,
    ) -> FoundRow {
        let admission = self.admit(table, id, route, holder);
        let alone = match admission {
            Admission::Waits { answer, .. } => {
                // Without an answer the group failed, its task died, or it waits for a server that
                // is silent. The read then goes by itself.
                let patience = self.pool(route).timeout();
                if let Ok(Ok(answer)) = tokio::time::timeout(patience, answer).await {
                    return answer;
                }
                None
            }
            Admission::Alone(lone_read) => Some(lone_read),
            Admission::Apart => None,
        };
        let query = table.by_id(self.driver.syntax(), id);
        let rows = self.fetch_by_id(&query, route, holder).await;
        drop(alone);
        rows.map(|mut rows| rows.pop())
    }

    /// Decides how a read goes on, and starts the group task that it needs.
    fn admit(
        self: &Arc<Self>,
        table: &Arc<TableInfo>,
        id: Uuid,
        route: Route,
        holder: &'static str,
    ) -> Admission<'_> {
        if !self.driver.capabilities().folds_reads {
            return Admission::Apart;
        }
        let Ok(runtime) = Handle::try_current() else { return Admission::Apart };
        let key = FoldKey { table: table.table.key(), route, runtime: runtime.id() };
        let admission = self.folded_reads.admit(key, table, id, holder);
        if let Admission::Waits { starts_group: true, .. } = admission {
            GroupTask::start(self, table, key, &runtime);
        }
        admission
    }
}
