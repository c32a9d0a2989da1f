//! Compares the SQL of the guide (`docs/src/commit.md`) with the statements of the dialects.
//!
//! Each dialect builds the statements of the guide's wallet and asserts that its section of
//! the page shows exactly those.

use crate::domain::{ColumnDef, Table, ValueType};

const PAGE: &str = include_str!("../../../docs/src/commit.md");

/// The sections that show SQL. Each is compared by the test of its dialect.
pub(super) const POSTGRES: &str = "## On PostgreSQL: one statement";
pub(super) const SQLITE: &str = "## On SQLite: one transaction";
pub(super) const MYSQL: &str = "## On MySQL and MariaDB: one packet";

pub(super) static WALLETS: Table = Table {
    schema: None,
    name: "wallets",
    model: "Wallet",
    columns: &[
        ColumnDef::new("id", ValueType::Uuid),
        ColumnDef::new("owner", ValueType::Text),
        ColumnDef::new("currency", ValueType::Text),
        ColumnDef::new("balance", ValueType::Decimal),
        ColumnDef::new("state", ValueType::Text),
        ColumnDef::new("version", ValueType::Int),
        ColumnDef::new("created_date", ValueType::Timestamp),
        ColumnDef::new("updated_date", ValueType::Timestamp),
    ],
    version: Some(5),
    dates: Some(6),
    state: Some(4),
};

/// The SQL blocks of a section, and those of the code, must be equal but for white space.
pub(super) fn assert_shown(section: &str, sent: &[String]) {
    let sent: Vec<String> = sent.iter().map(|sql| normalized(sql)).collect();
    assert_eq!(shown(section), sent, "docs/src/commit.md, {section}");
}

fn shown(section: &str) -> Vec<String> {
    let (_, rest) = PAGE.split_once(section).expect("the page has the section");
    blocks(rest.split("\n## ").next().unwrap_or_default())
}

fn blocks(text: &str) -> Vec<String> {
    let blocks = text.split("```sql\n").skip(1);
    blocks.map(|block| normalized(block.split("\n```").next().unwrap_or_default())).collect()
}

fn normalized(sql: &str) -> String {
    let words: Vec<&str> = sql.split_whitespace().collect();
    words.join(" ").replace("( ", "(").replace(" )", ")")
}

#[test]
fn no_other_section_shows_sql() {
    let compared: usize =
        [POSTGRES, SQLITE, MYSQL].map(|section| shown(section).len()).iter().sum();
    assert_eq!(blocks(PAGE).len(), compared);
}
