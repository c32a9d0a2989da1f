//! The columns and the name of a table, from the catalogue of MySQL and MariaDB.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::mysql::MySqlRow;

use super::connection::MySqlConnection;
use super::error::classify;
use super::syntax::MySqlSyntax;
use crate::db::{ColumnInfo, DbError, Nulls, Reference};
use crate::domain::Table;

/// The columns of a table, in order.
///
/// The collations of MySQL that do not pad have `0900` in their names; MariaDB does not say which do.
///
/// An enum without a default gets its first value. A trigger before the insert may fill
/// columns; only a user with the privilege TRIGGER sees it.
///
/// Each view of the catalogue is asked with the names themselves, and not with those of another
/// view: MariaDB would open every table of all databases.
const COLUMNS: &str = "\
    SELECT c.column_name, IF(c.data_type = 'enum', c.column_type, LOWER(c.column_type)), c.data_type = 'enum', \
        IF(c.data_type = 'decimal', c.numeric_precision, NULL), c.numeric_scale, \
        IF(t.table_type LIKE '%VIEW', NULL, c.is_nullable = 'YES'), \
        c.is_nullable = 'NO' AND c.column_default IS NULL AND c.data_type <> 'enum' \
            AND c.extra NOT LIKE '%auto_increment%' AND c.extra NOT LIKE '%GENERATED%' \
            AND t.table_type NOT LIKE '%VIEW' AND NOT EXISTS ( \
                SELECT 1 FROM information_schema.triggers \
                WHERE event_object_schema = ? AND event_object_table = ? \
                AND event_manipulation = 'INSERT' AND action_timing = 'BEFORE'), \
        LOCATE('_0900_', c.collation_name) = 0, IFNULL(c.generation_expression <> '', FALSE) \
    FROM information_schema.columns c \
    JOIN information_schema.tables t ON t.table_schema = ? AND t.table_name = ? \
    WHERE c.table_schema = ? AND c.table_name = ? ORDER BY c.ordinal_position";

/// The columns of the foreign keys of a table.
const REFERENCES: &str = "\
    SELECT column_name, constraint_name, referenced_table_schema, referenced_table_name, \
        referenced_column_name \
    FROM information_schema.key_column_usage \
    WHERE table_schema = ? AND table_name = ? AND referenced_table_name IS NOT NULL \
    ORDER BY constraint_name, ordinal_position";

/// The name of a table. Whether the case of names matters is a setting of the server.
const NAME: &str = "\
    SELECT IF(@@lower_case_table_names = 0, CONCAT(table_schema, '.', table_name), \
        LOWER(CONCAT(table_schema, '.', table_name))) \
    FROM information_schema.tables WHERE table_schema = ? AND table_name = ?";

impl MySqlConnection {
    pub(super) async fn read_columns(&mut self, table: &Table) -> Result<Vec<ColumnInfo>, DbError> {
        let here = self.database().to_owned();
        let schema = table.schema.map_or(&*here, |schema| self.syntax.database(schema)).to_owned();
        let rows = self.ask(COLUMNS, &schema, table.name, 3).await?;
        let keys = self.ask(REFERENCES, &schema, table.name, 1).await?;
        references(&keys, &self.syntax, &here)
            .and_then(|references| columns(&rows, references))
            .map_err(classify)
    }

    /// Asks with the names of a database and of a table, so many times each.
    async fn ask(
        &mut self,
        question: &'static str,
        schema: &str,
        table: &str,
        times: usize,
    ) -> Result<Vec<MySqlRow>, DbError> {
        self.trips += 1;
        let names = (0..times).flat_map(|_| [schema, table]);
        let question = names.fold(sqlx::query(question), |question, name| question.bind(name));
        question.fetch_all(&mut self.inner).await.map_err(classify)
    }

    pub(super) async fn read_name(&mut self, table: &Table) -> Result<Option<String>, DbError> {
        let here = self.database();
        let schema = table.schema.map_or(here, |schema| self.syntax.database(schema)).to_owned();
        self.trips += 1;
        let row = sqlx::query(NAME)
            .bind(schema)
            .bind(table.name)
            .fetch_optional(&mut self.inner)
            .await
            .map_err(classify)?;
        row.map(|row| row.try_get_unchecked(0)).transpose().map_err(classify)
    }
}

fn text(row: &MySqlRow, at: usize) -> Result<Option<String>, sqlx::Error> {
    row.try_get_unchecked(at)
}

fn number(row: &MySqlRow, at: usize) -> Result<Option<i64>, sqlx::Error> {
    row.try_get_unchecked(at)
}

/// By column, what it refers to.
fn references(
    rows: &[MySqlRow],
    syntax: &MySqlSyntax,
    here: &str,
) -> Result<HashMap<String, Vec<Reference>>, sqlx::Error> {
    let constraints: Vec<_> = rows.iter().map(|row| text(row, 1)).collect::<Result<_, _>>()?;
    let mut references = HashMap::<_, Vec<_>>::new();
    for (row, of_key) in rows.iter().zip(&constraints) {
        let names = (text(row, 0)?, text(row, 2)?, text(row, 3)?, text(row, 4)?);
        let (Some(name), Some(database), Some(table), Some(column)) = names else { continue };
        let is_whole_key = constraints.iter().filter(|name| *name == of_key).count() == 1;
        let column = is_whole_key.then_some(&column);
        let reference = syntax.reference((&database, here), &table, column);
        references.entry(name).or_default().push(reference);
    }
    Ok(references)
}

fn columns(
    rows: &[MySqlRow],
    mut references: HashMap<String, Vec<Reference>>,
) -> Result<Vec<ColumnInfo>, sqlx::Error> {
    let column = |row| {
        let digits = |at| number(row, at).map(|n| n.and_then(|n| u32::try_from(n).ok()));
        let name = text(row, 0)?.unwrap_or_default();
        Ok(ColumnInfo {
            references: references.remove(&name).unwrap_or_default(),
            name,
            db_type: text(row, 1)?.unwrap_or_default(),
            numeric: digits(3)?.zip(digits(4)?.map(u32::cast_signed)),
            length: None,
            is_enum: number(row, 2)? == Some(1),
            is_padded: number(row, 7)? == Some(1),
            nulls: Nulls::of(number(row, 5)?.map(|nullable| nullable == 1)),
            required: number(row, 6)? == Some(1),
            is_computed: number(row, 8)? == Some(1),
        })
    };
    rows.iter().map(column).collect()
}
