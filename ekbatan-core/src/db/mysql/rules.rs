//! The rules of a table, from the catalogue of MySQL and MariaDB.

use std::collections::BTreeMap;

use sqlx::{AssertSqlSafe, Row};

use super::connection::MySqlConnection;
use super::error::classify;
use super::flavour::Flavour;
use super::literal::write_text;
use crate::db::{DbError, Rule, Rules};
use crate::domain::Table;

/// Statements of one packet. Each row is a rule, or a column of one: its kind, its index, a
/// column, and its SQL. `{schema}` and `{table}` are literals.
///
/// References to the table are looked up in its own database only, and each view is asked for it
/// by a literal, because the servers would open every table of all databases. A role without the privilege TRIGGER does not see
/// triggers, so its tables count as having some.
const RULES: &str = "
SELECT IF(table_type = 'SYSTEM VERSIONED', 'row', 'reacts'), NULL, NULL, NULL FROM information_schema.tables
WHERE table_schema = {schema} AND table_name = {table} AND table_type <> 'BASE TABLE';
SELECT 'engine', NULL, NULL, engine FROM information_schema.tables
WHERE table_schema = {schema} AND table_name = {table}
AND engine NOT IN (SELECT engine FROM information_schema.engines WHERE transactions = 'YES');
SELECT 'row', NULL, NULL, NULL FROM information_schema.columns
WHERE table_schema = {schema} AND table_name = {table} AND generation_expression <> '';
SELECT 'row', NULL, NULL, NULL FROM information_schema.partitions
WHERE table_schema = {schema} AND table_name = {table} AND partition_name IS NOT NULL;
SELECT IF(non_unique = 0, 'compares', 'expression'), index_name, column_name, {expression} FROM information_schema.statistics
WHERE table_schema = {schema} AND table_name = {table} AND (non_unique = 0 OR column_name IS NULL);
SELECT 'refers', NULL, column_name, NULL FROM information_schema.key_column_usage
WHERE table_schema = {schema} AND table_name = {table} AND referenced_table_name IS NOT NULL;
SELECT IF(r.update_rule IN ('RESTRICT', 'NO ACTION'), 'referred', 'cascades'), NULL, k.referenced_column_name, NULL
FROM information_schema.key_column_usage k JOIN information_schema.referential_constraints r
ON r.constraint_schema = {schema} AND r.constraint_name = k.constraint_name AND r.table_name = k.table_name
WHERE k.table_schema = {schema} AND k.referenced_table_schema = {schema} AND k.referenced_table_name = {table};
SELECT 'reacts', NULL, NULL, NULL FROM information_schema.triggers
WHERE event_object_schema = {schema} AND event_object_table = {table} AND event_manipulation <> 'DELETE';
SELECT 'reacts', NULL, NULL, NULL FROM (SELECT 1) unseen WHERE
NOT EXISTS (SELECT 1 FROM information_schema.user_privileges WHERE privilege_type = 'TRIGGER')
AND NOT EXISTS (SELECT 1 FROM information_schema.schema_privileges WHERE privilege_type = 'TRIGGER' AND {schema} LIKE table_schema)
AND NOT EXISTS (SELECT 1 FROM information_schema.table_privileges WHERE privilege_type = 'TRIGGER'
AND table_schema = {schema} AND table_name = {table});
SELECT 'expression', NULL, NULL, c.check_clause FROM ";

const CHECKS_OF_MYSQL: &str =
    "information_schema.table_constraints o JOIN information_schema.check_constraints c
ON c.constraint_schema = o.constraint_schema AND c.constraint_name = o.constraint_name
WHERE o.table_schema = {schema} AND o.table_name = {table} AND o.constraint_type = 'CHECK'";

const CHECKS_OF_MARIADB: &str = "information_schema.check_constraints c
WHERE c.constraint_schema = {schema} AND c.table_name = {table}";

fn query(flavour: Flavour, schema: &str, table: &str) -> String {
    let (checks, expression) = match flavour {
        Flavour::MySql => (CHECKS_OF_MYSQL, "expression"),
        // It has no indexes on expressions.
        Flavour::MariaDb => (CHECKS_OF_MARIADB, "NULL"),
    };
    let literal = |name| {
        let mut sql = String::new();
        write_text(&mut sql, name);
        sql
    };
    format!("{RULES}{checks}")
        .replace("{expression}", expression)
        .replace("{schema}", &literal(schema))
        .replace("{table}", &literal(table))
}

impl MySqlConnection {
    pub(super) async fn read_rules(&mut self, table: &Table) -> Result<Rules, DbError> {
        let here = self.database().to_owned();
        let schema = table.schema.map_or(&*here, |schema| self.syntax.database(schema));
        let sql = query(self.syntax.flavour, schema, table.name);
        self.trips += 1;
        let rows =
            sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut self.inner).await.map_err(classify)?;
        let mut rules = Vec::new();
        let mut indexes: BTreeMap<String, Vec<Option<String>>> = BTreeMap::new();
        for row in rows {
            let text = |at: usize| row.try_get_unchecked::<Option<String>, _>(at).map_err(classify);
            let (kind, index, column, sql) = (text(0)?, text(1)?, text(2)?, text(3)?);
            match (kind.as_deref().unwrap_or_default(), index, column, sql) {
                ("compares", Some(index), column, _) => {
                    indexes.entry(index).or_default().push(column);
                }
                ("referred", _, Some(column), _) => rules.push(Rule::Referred(vec![column])),
                ("refers", _, Some(column), _) => rules.push(Rule::Reference(vec![column])),
                ("expression", .., Some(sql)) => rules.push(Rule::Expression(sql)),
                ("engine", .., Some(name)) => rules.push(Rule::EngineWithoutTransactions(name)),
                // Nothing cascades from an id, because no id changes.
                ("cascades", _, Some(column), _) if column == table.columns[0].name => {}
                ("cascades" | "reacts", ..) => rules.push(Rule::Reaction),
                _ => rules.push(Rule::Row),
            }
        }
        for columns in indexes.into_values() {
            let of_expression = columns.contains(&None);
            let columns: Vec<String> = columns.into_iter().flatten().collect();
            if of_expression {
                rules.push(Rule::Row);
                // Also if it has the id: the rule above watches the whole row.
                rules.push(Rule::ComparisonBy(String::new()));
            } else {
                rules.push(Rule::Comparison(columns));
            }
        }
        Ok(Rules::of(table, rules))
    }
}
