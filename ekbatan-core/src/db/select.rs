//! The SELECT statements over the rows of a table.
//!
//! Invariant: the text of a read by id does not depend on the id, and is built once for a table,
//! so that a connection prepares it once.

use uuid::Uuid;

use super::{Arg, Columns, Query, Syntax, TableInfo};
use crate::domain::{Value, ValueType};

impl TableInfo {
    /// A SELECT of all columns of the rows that match a filter and are not deleted.
    pub(crate) fn select(&self, syntax: &dyn Syntax, filter: &str, tail: &str) -> String {
        let columns: Vec<String> =
            self.columns.iter().map(|column| syntax.quote(&column.name)).collect();
        let table = syntax.table(self.table);
        let filter = self.visible(syntax, filter);
        format!("SELECT {} FROM {table}{filter}{tail}", columns.join(", "))
    }

    /// The WHERE clause: the filter, and the exclusion of deleted rows.
    pub(crate) fn visible(&self, syntax: &dyn Syntax, filter: &str) -> String {
        match self.table.state {
            Some(state) => {
                let state = syntax.state_operand(&self.columns[state]);
                format!(" WHERE ({filter}) AND {state} <> 'DELETED'")
            }
            None => format!(" WHERE {filter}"),
        }
    }

    /// The condition that the id is this one.
    pub(crate) fn id_is(&self, syntax: &dyn Syntax, id: Uuid) -> (String, Vec<Arg>) {
        (self.id_is_first(syntax), vec![Arg::One(ValueType::Uuid, Value::Uuid(id))])
    }

    /// The condition that the id is `$1`.
    fn id_is_first(&self, syntax: &dyn Syntax) -> String {
        let column = &self.columns[0];
        format!("{} = {}", syntax.quote(&column.name), syntax.argument(1, ValueType::Uuid, column))
    }

    /// The read of one row by its id.
    pub(crate) fn by_id(&self, syntax: &dyn Syntax, id: Uuid) -> Query {
        let text = || self.select(syntax, &self.id_is_first(syntax), "").into();
        let sql = self.by_id.get_or_init(text).clone();
        let args = vec![Arg::One(ValueType::Uuid, Value::Uuid(id))];
        Query { sql, args, columns: Columns::of(self.table) }
    }

    /// The read of several rows by their ids.
    pub(crate) fn by_ids(&self, syntax: &dyn Syntax, ids: &[Uuid]) -> Query {
        if let [id] = ids {
            return self.by_id(syntax, *id);
        }
        let in_list = || syntax.any(1, ValueType::Uuid, &self.columns[0]);
        let sql = self.by_ids.get_or_init(|| self.select(syntax, &in_list(), "").into()).clone();
        let ids = ids.iter().copied().map(Value::Uuid).collect();
        let args = vec![Arg::Many(ValueType::Uuid, ids)];
        Query { sql, args, columns: Columns::of(self.table) }
    }
}
