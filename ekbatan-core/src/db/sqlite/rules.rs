//! The rules of a table, from SQLite's catalogue. It has no list of checks, so they are found in
//! the text that created the table.

use sqlx::Row;

use super::connection::SqliteConnection;
use super::error::classify;
use super::syntax::SqliteSyntax;
use crate::db::{DbError, Rule, Rules, Syntax};
use crate::domain::Table;

/// Each row is a rule, or a column of one: its kind, its index, a column, and its SQL.
const RULES: &str = "
SELECT CASE WHEN type = 'table' THEN 'table' ELSE 'reacts' END, NULL, NULL, sql FROM sqlite_master
WHERE (type IN ('table', 'view') AND lower(name) = lower($1)) OR (type = 'trigger' AND lower(tbl_name) = lower($1))
UNION ALL SELECT 'row', NULL, NULL, NULL FROM pragma_table_xinfo($1) WHERE hidden IN (2, 3)
UNION ALL SELECT CASE WHEN i.partial = 0 AND c.name IS NOT NULL THEN 'compares' ELSE 'compares_by' END, i.name, c.name,
    (SELECT sql FROM sqlite_master WHERE type = 'index' AND name = i.name)
    FROM pragma_index_list($1) i, pragma_index_info(i.name) c WHERE i.\"unique\" = 1
UNION ALL SELECT 'expression', NULL, NULL, (SELECT sql FROM sqlite_master WHERE type = 'index' AND name = i.name)
    FROM pragma_index_list($1) i, pragma_index_info(i.name) c WHERE i.\"unique\" = 0 AND (i.partial = 1 OR c.name IS NULL)
UNION ALL SELECT 'refers', NULL, \"from\", NULL FROM pragma_foreign_key_list($1)
UNION ALL SELECT CASE WHEN f.on_update IN ('NO ACTION', 'RESTRICT') THEN 'referred' ELSE 'cascades' END, NULL, f.\"to\", m.sql
    FROM sqlite_master m, pragma_foreign_key_list(m.name) f WHERE m.type = 'table' AND lower(f.\"table\") = lower($1)";

impl SqliteConnection {
    pub(super) async fn read_rules(&mut self, table: &Table) -> Result<Rules, DbError> {
        self.trips += 1;
        let rows = sqlx::query(RULES)
            .bind(SqliteSyntax.table(table).trim_matches('"'))
            .fetch_all(&mut self.inner)
            .await
            .map_err(classify)?;
        let mut rules = Vec::new();
        let mut keys: Vec<(Option<String>, Vec<String>)> = Vec::new();
        for row in rows {
            let text = |at: usize| row.try_get::<Option<String>, _>(at).map_err(classify);
            let (kind, index, column, sql) = (text(0)?, text(1)?, text(2)?, text(3)?);
            // A deferred reference is checked when the whole group commits.
            if sql.as_deref().is_some_and(is_deferred) {
                rules.push(Rule::Reaction);
            }
            match (kind.as_deref().unwrap_or_default(), column, sql) {
                ("table", _, Some(sql)) => rules.extend(rules_in(&sql)),
                ("compares", Some(column), _) => match keys.last_mut() {
                    Some((of, columns)) if *of == index => columns.push(column),
                    _ => keys.push((index, vec![column])),
                },
                ("compares_by", _, Some(sql)) => rules.push(Rule::ComparisonBy(sql)),
                ("expression", _, Some(sql)) => rules.push(Rule::Expression(sql)),
                ("refers", Some(column), _) => rules.push(Rule::Reference(vec![column])),
                // A reference without a column is one to the id, which never changes.
                ("referred" | "cascades", None, _) => {}
                ("cascades", Some(column), _) if column == table.columns[0].name => {}
                ("referred", Some(column), _) => rules.push(Rule::Referred(vec![column])),
                ("cascades" | "reacts", ..) => rules.push(Rule::Reaction),
                _ => rules.push(Rule::Row),
            }
        }
        rules.extend(keys.into_iter().map(|(_, columns)| Rule::Comparison(columns)));
        Ok(Rules::of(table, rules))
    }
}

fn is_deferred(sql: &str) -> bool {
    sql.to_ascii_lowercase().contains("deferred")
}

/// The rules in the text that created a table.
fn rules_in(sql: &str) -> Vec<Rule> {
    let lower = sql.to_ascii_lowercase();
    if lower.trim_start().starts_with("create virtual") {
        return vec![Rule::Reaction];
    }
    let mut rules = Vec::new();
    let mut rest = &*lower;
    while let Some(at) = rest.find("check") {
        rest = &rest[at + "check".len()..];
        let behind = rest.trim_start();
        if behind.starts_with('(') {
            rules.push(match in_parentheses(rest) {
                Some(expression) => Rule::Expression(expression.to_owned()),
                None => Rule::Row,
            });
        } else if behind.starts_with("--") || behind.starts_with("/*") {
            rules.push(Rule::Row);
        }
    }
    rules
}

/// The text in the parentheses that begin it; `None` if their end is not certain.
fn in_parentheses(text: &str) -> Option<&str> {
    let mut depth = 0;
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (c, quote) {
            (_, Some(open)) if c == open => quote = None,
            (_, Some(_)) => {}
            ('\'' | '"' | '`', None) => quote = Some(c),
            ('-' | '/', None) if text[at..].starts_with("--") || text[at..].starts_with("/*") => {
                return None;
            }
            ('(', None) => depth += 1,
            (')', None) => {
                depth -= 1;
                if depth == 0 {
                    return Some(&text[..at]);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::fixtures::WALLETS;

    #[test]
    fn checks_are_found_in_the_text_of_a_table() {
        let watched = |sql: &str| {
            let rules = Rules::of(&WALLETS, rules_in(sql));
            (0..WALLETS.columns.len()).filter(|at| rules.watches(*at)).collect::<Vec<_>>()
        };
        let check = "CHECK (balance >= 0 AND state IN ('(', 'a''b'))";
        assert_eq!(watched(&format!("CREATE TABLE w (balance INT {check}, version INT)")), [1]);
        assert_eq!(watched("CREATE TABLE w (check_in TEXT, version INT)"), [0; 0]);
        assert_eq!(watched("CREATE TABLE w (balance INT check(version > (1 + 1)))"), [2]);
        let commented = "CREATE TABLE w (balance INT check (version > 1 -- )\n AND balance > 1))";
        assert_eq!(watched(commented), [0, 1, 2, 3, 4]);
    }
}
