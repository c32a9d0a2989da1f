//! The rules of a table, from PostgreSQL's catalogue.

use sqlx::Row;

use super::connection::PostgresConnection;
use super::error::classify;
use super::syntax::PostgresSyntax;
use crate::db::{DbError, Rule, Rules, Syntax};
use crate::domain::Table;

/// Each row is a rule: its kind, the columns that it names, and its SQL. The columns are null if
/// the rule looks at more than columns, or is an index whose creation has failed: that one compares new rows,
/// but earlier ones may be equal.
///
/// A trigger suppresses a row if it runs before the row (type 3 of 67) and returns null. Of a table with a rewrite
/// rule no rows can be counted.
const RULES: &str = "
WITH t AS (SELECT oid, relkind, relispartition, relrowsecurity, relhassubclass FROM pg_class WHERE oid = to_regclass($1)),
a AS (SELECT a.* FROM pg_attribute a JOIN t ON a.attrelid = t.oid WHERE a.attnum > 0 AND NOT a.attisdropped)
SELECT 'reacts', NULL::text[], NULL::text FROM t WHERE relkind NOT IN ('r', 'p')
UNION ALL SELECT 'row', NULL, NULL FROM t WHERE relkind = 'p' OR relispartition OR relrowsecurity OR relhassubclass
UNION ALL SELECT 'row', NULL, NULL FROM a WHERE attgenerated <> ''
UNION ALL SELECT 'columns', ARRAY[a.attname::text], NULL FROM a JOIN pg_type y ON y.oid = a.atttypid WHERE y.typtype = 'd'
UNION ALL SELECT 'reacts', NULL, NULL FROM t JOIN pg_trigger g ON g.tgrelid = t.oid
    WHERE NOT g.tgisinternal AND g.tgtype & 20 <> 0
UNION ALL SELECT 'suppresses', NULL, NULL FROM t JOIN pg_trigger g
    ON g.tgrelid = t.oid OR g.tgrelid IN (SELECT relid FROM pg_partition_tree(t.oid))
    WHERE t.relkind IN ('r', 'p') AND NOT g.tgisinternal AND g.tgtype & 67 = 3 AND g.tgtype & 20 <> 0
    AND NOT EXISTS (SELECT FROM pg_rewrite w WHERE w.ev_class = t.oid)
UNION ALL SELECT 'reacts', NULL, NULL FROM t JOIN pg_rewrite w ON w.ev_class = t.oid
UNION ALL SELECT CASE c.contype WHEN 'c' THEN 'columns' WHEN 'f' THEN 'refers' ELSE 'compares' END,
    CASE WHEN 0 < ALL (c.conkey) THEN
        (SELECT array_agg(a.attname::text) FROM a WHERE a.attnum = ANY (c.conkey)) END, NULL
    FROM t JOIN pg_constraint c ON c.conrelid = t.oid WHERE c.contype IN ('c', 'f', 'p', 'u', 'x')
UNION ALL SELECT CASE WHEN c.confupdtype IN ('a', 'r') THEN 'referred' ELSE 'cascades' END,
    (SELECT array_agg(a.attname::text) FROM a WHERE a.attnum = ANY (c.confkey)), NULL
    FROM t JOIN pg_constraint c ON c.confrelid = t.oid WHERE c.contype = 'f'
UNION ALL SELECT CASE WHEN i.indisunique THEN 'compares' ELSE 'expression' END,
    CASE WHEN i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL THEN
        (SELECT array_agg(a.attname::text) FROM a WHERE a.attnum = ANY (i.indkey)) END,
    pg_get_indexdef(i.indexrelid)
    FROM t JOIN pg_index i ON i.indrelid = t.oid
    WHERE i.indisunique OR i.indpred IS NOT NULL OR i.indexprs IS NOT NULL";

impl PostgresConnection {
    pub(super) async fn read_rules(&mut self, table: &Table) -> Result<Rules, DbError> {
        self.trips += 1;
        let rows = sqlx::query(RULES)
            .bind(PostgresSyntax.table(table))
            .fetch_all(&mut self.inner)
            .await
            .map_err(classify)?;
        let mut rules = Vec::with_capacity(rows.len());
        for row in rows {
            let kind: String = row.try_get(0).map_err(classify)?;
            let columns: Option<Vec<String>> = row.try_get(1).map_err(classify)?;
            let sql: Option<String> = row.try_get(2).map_err(classify)?;
            match (&*kind, columns, sql) {
                ("columns", Some(columns), _) => rules.push(Rule::Columns(columns)),
                ("refers", Some(columns), _) => rules.push(Rule::Reference(columns)),
                ("referred", Some(columns), _) => rules.push(Rule::Referred(columns)),
                ("compares", Some(columns), _) => rules.push(Rule::Comparison(columns)),
                ("compares", None, Some(sql)) => rules.push(Rule::ComparisonBy(sql)),
                // An exclusion constraint of expressions; its index lists them, too.
                ("compares", None, None) => rules.push(Rule::Row),
                ("expression", _, Some(sql)) => rules.push(Rule::Expression(sql)),
                // Nothing cascades from an id, because no id changes.
                ("cascades", Some(columns), _) if columns[..] == [table.columns[0].name] => {}
                ("cascades" | "reacts", ..) => rules.push(Rule::Reaction),
                ("suppresses", ..) => rules.push(Rule::Suppression),
                _ => rules.push(Rule::Row),
            }
        }
        Ok(Rules::of(table, rules))
    }
}
