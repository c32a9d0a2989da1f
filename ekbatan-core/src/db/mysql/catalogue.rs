//! The columns and the name of a table, from the catalogue of MySQL and MariaDB.

use sqlx::Row;
use sqlx::mysql::MySqlRow;

use super::connection::MySqlConnection;
use super::error::classify;
use super::syntax::MySqlSyntax;
use crate::db::{ColumnInfo, DbError, Nulls};
use crate::domain::Table;

/// The columns of a table, in order. A column with several foreign keys has a row for each.
///
/// An enum without a default gets its first value. A trigger before the insert may fill
/// columns; only a user with the privilege TRIGGER sees it.
const COLUMNS: &str = "\
    SELECT c.column_name, LOWER(c.column_type), c.data_type = 'enum', \
        IF(c.data_type = 'decimal', c.numeric_precision, NULL), c.numeric_scale, \
        k.referenced_table_schema, k.referenced_table_name, k.referenced_column_name, \
        k.constraint_name, IF(t.table_type LIKE '%VIEW', NULL, c.is_nullable = 'YES'), \
        c.is_nullable = 'NO' AND c.column_default IS NULL AND c.data_type <> 'enum' \
            AND c.extra NOT LIKE '%auto_increment%' AND c.extra NOT LIKE '%GENERATED%' \
            AND t.table_type NOT LIKE '%VIEW' AND NOT EXISTS ( \
                SELECT 1 FROM information_schema.triggers g \
                WHERE g.event_object_schema = c.table_schema \
                AND g.event_object_table = c.table_name \
                AND g.event_manipulation = 'INSERT' AND g.action_timing = 'BEFORE') \
    FROM information_schema.columns c \
    JOIN information_schema.tables t \
        ON t.table_schema = c.table_schema AND t.table_name = c.table_name \
    LEFT JOIN information_schema.key_column_usage k \
        ON k.table_schema = c.table_schema AND k.table_name = c.table_name \
        AND k.column_name = c.column_name AND k.referenced_table_name IS NOT NULL \
    WHERE c.table_schema = ? AND c.table_name = ? ORDER BY c.ordinal_position";

/// The name of a table. Whether the case of names matters is a setting of the server.
const NAME: &str = "\
    SELECT IF(@@lower_case_table_names = 0, CONCAT(table_schema, '.', table_name), \
        LOWER(CONCAT(table_schema, '.', table_name))) \
    FROM information_schema.tables WHERE table_schema = ? AND table_name = ?";

impl MySqlConnection {
    pub(super) async fn read_columns(&mut self, table: &Table) -> Result<Vec<ColumnInfo>, DbError> {
        let here = self.database().to_owned();
        let schema = table.schema.map_or(&*here, |schema| self.syntax.database(schema));
        self.trips += 1;
        let rows = sqlx::query(COLUMNS)
            .bind(schema)
            .bind(table.name)
            .fetch_all(&mut self.inner)
            .await
            .map_err(classify)?;
        columns(&rows, &self.syntax, &here).map_err(classify)
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

fn columns(
    rows: &[MySqlRow],
    syntax: &MySqlSyntax,
    here: &str,
) -> Result<Vec<ColumnInfo>, sqlx::Error> {
    let constraint = |row: &MySqlRow| row.try_get_unchecked::<Option<String>, _>(8);
    let constraints: Vec<Option<String>> = rows.iter().map(constraint).collect::<Result<_, _>>()?;
    let mut columns: Vec<ColumnInfo> = Vec::new();
    for row in rows {
        let text = |at: usize| row.try_get_unchecked::<Option<String>, _>(at);
        let number = |at: usize| row.try_get_unchecked::<Option<i64>, _>(at);
        let digits = |at| number(at).map(|n| n.and_then(|n| u32::try_from(n).ok()));
        let references = match (text(5)?, text(6)?, text(7)?) {
            (Some(database), Some(table), Some(column)) => {
                let of_key = constraint(row)?;
                let is_whole_key = constraints.iter().filter(|name| **name == of_key).count() == 1;
                let column = is_whole_key.then_some(&column);
                vec![syntax.reference((&database, here), &table, column)]
            }
            _ => Vec::new(),
        };
        let column = ColumnInfo {
            name: text(0)?.unwrap_or_default(),
            db_type: text(1)?.unwrap_or_default(),
            numeric: digits(3)?.zip(digits(4)?),
            length: None,
            is_enum: number(2)? == Some(1),
            nulls: Nulls::of(number(9)?.map(|nullable| nullable == 1)),
            required: number(10)? == Some(1),
            references,
        };
        match columns.last_mut() {
            Some(last) if last.name == column.name => last.references.extend(column.references),
            _ => columns.push(column),
        }
    }
    Ok(columns)
}
