//! The rules of a table: what in the database looks at each change of a row.
//!
//! Invariant: where the catalogue does not say exactly what a rule looks at, the rule counts as
//! one that looks at more.

use crate::domain::Table;

/// A rule as a dialect reads it from the catalogue. Columns have their names in the database.
pub(crate) enum Rule {
    /// Looks at these columns of one row, such as a check or a domain.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))] // others list the SQL of a check
    Columns(Vec<String>),
    /// Looks at those columns of one row that this SQL names.
    Expression(String),
    /// Looks at a whole row.
    Row,
    /// Compares rows by these columns, such as a unique key.
    Comparison(Vec<String>),
    /// Compares rows by this SQL.
    ComparisonBy(String),
    /// These columns refer to other rows.
    Reference(Vec<String>),
    /// Other rows refer to these columns.
    Referred(Vec<String>),
    /// Writes further rows, or other values than the statement says.
    Reaction,
    /// May keep a statement from writing a row, without an error. SQLite counts the rows anyway.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))]
    Suppression,
    /// An engine of this name, which cannot undo what it has written.
    #[cfg_attr(not(feature = "mysql"), allow(dead_code))] // others have one engine
    EngineWithoutTransactions(String),
}

/// The rules of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Whether a rule looks at the column, in the order of `Table::columns`.
    watched: Vec<bool>,
    /// Whether other rows may refer to the column.
    keys: Vec<bool>,
    /// Whether a rule compares rows with each other.
    pub(crate) compares_rows: bool,
    /// Whether rows refer to other rows.
    pub(crate) refers: bool,
    /// Whether a write may change more than it says: the table has triggers, or is a view.
    pub(crate) reacts: bool,
    /// Whether a trigger may suppress the write of a row, so that the rows of each statement must be
    /// counted.
    pub(crate) may_suppress: bool,
    /// Whether a unique key contains the id.
    pub(crate) has_unique_id: bool,
    /// The engine that stores the table, if it cannot undo what it has written.
    pub(crate) engine_without_transactions: Option<String>,
}

impl Rules {
    pub(crate) fn of(table: &Table, rules: Vec<Rule>) -> Self {
        let none = vec![false; table.columns.len()];
        let mut all = Self { watched: none.clone(), keys: none, ..Self::default() };
        for rule in rules {
            all.add(table, rule);
        }
        all
    }

    /// Whether a rule looks at the column at this position.
    pub(crate) fn watches(&self, position: usize) -> bool {
        self.watched.get(position).copied().unwrap_or(false)
    }

    /// Whether other rows may refer to the column at this position.
    pub(crate) fn is_key(&self, position: usize) -> bool {
        self.keys.get(position).copied().unwrap_or(false)
    }

    fn add(&mut self, table: &Table, rule: Rule) {
        let watch = |set: &mut Vec<bool>, is_watched: &dyn Fn(&str) -> bool| {
            for (watched, column) in set.iter_mut().zip(table.columns) {
                *watched |= is_watched(column.name);
            }
        };
        let is_listed = |columns: &[String], name: &str| {
            columns.iter().any(|column| column.eq_ignore_ascii_case(name))
        };
        match rule {
            Rule::Columns(columns) => watch(&mut self.watched, &|name| is_listed(&columns, name)),
            Rule::Expression(sql) => watch(&mut self.watched, &|name| mentions(&sql, name)),
            Rule::Row => watch(&mut self.watched, &|_| true),
            // No two rows have the same id, so it compares no others.
            Rule::Comparison(columns) if is_listed(&columns, table.columns[0].name) => {
                self.has_unique_id = true;
            }
            Rule::Comparison(columns) => {
                self.compares_rows = true;
                watch(&mut self.watched, &|name| is_listed(&columns, name));
                watch(&mut self.keys, &|name| is_listed(&columns, name));
            }
            Rule::ComparisonBy(sql) => {
                self.compares_rows = true;
                watch(&mut self.watched, &|name| mentions(&sql, name));
            }
            Rule::Reference(columns) => {
                self.refers = true;
                watch(&mut self.watched, &|name| is_listed(&columns, name));
            }
            Rule::Referred(columns) => {
                watch(&mut self.watched, &|name| is_listed(&columns, name));
                watch(&mut self.keys, &|name| is_listed(&columns, name));
            }
            Rule::Reaction => self.reacts = true,
            Rule::Suppression => self.may_suppress = true,
            Rule::EngineWithoutTransactions(name) => self.engine_without_transactions = Some(name),
        }
    }
}

/// Whether SQL may name the column.
fn mentions(sql: &str, column: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    if column.chars().all(in_word) {
        sql.split(|c| !in_word(c)).any(|word| word.eq_ignore_ascii_case(column))
    } else {
        sql.to_lowercase().contains(&column.to_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::fixtures::WALLETS;

    fn watched(rules: Vec<Rule>) -> Vec<&'static str> {
        let rules = Rules::of(&WALLETS, rules);
        let columns = WALLETS.columns.iter().enumerate();
        columns.filter(|(at, _)| rules.watches(*at)).map(|(_, column)| column.name).collect()
    }

    #[test]
    fn a_rule_watches_the_columns_that_it_names() {
        let sql = "((`Balance` >= 0) AND versions > 1)";
        assert_eq!(watched(vec![Rule::Expression(sql.to_owned())]), ["balance"]);
        assert_eq!(watched(vec![Rule::Columns(vec!["version".to_owned()])]), ["version"]);
        assert_eq!(watched(vec![Rule::Row]).len(), WALLETS.columns.len());
        assert_eq!(watched(Vec::new()), [""; 0]);
    }

    #[test]
    fn a_key_that_contains_the_id_compares_no_two_rows() {
        let key = |columns: &[&str]| {
            let columns = columns.iter().map(|column| (*column).to_owned()).collect();
            Rules::of(&WALLETS, vec![Rule::Comparison(columns)])
        };
        assert!(!key(&["id"]).compares_rows && !key(&["balance", "id"]).compares_rows);
        assert!(key(&["id"]).has_unique_id && key(&["balance", "id"]).has_unique_id);
        assert!(key(&["balance"]).compares_rows && !key(&["balance"]).has_unique_id);
    }
}
