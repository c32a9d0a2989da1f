//! Whether a statement that creates or drops something failed because it had run before.
//!
//! A process can end between the moment at which it notes that it sends the statement and the
//! server's work. So an error counts only if the statement's own kind can cause it: a procedure that
//! a `DROP` does not find is gone, but one that a view does not find is a mistake in the view.

use std::collections::BTreeSet;

use crate::db::DbError;

pub(super) fn has_run_before(statement: &str, error: &DbError) -> bool {
    let words = words(statement);
    match error.code().unwrap_or_default() {
        // What it creates is there: a table, a procedure or function, a trigger.
        "1050" | "1304" | "1359" => true,
        // What it adds to a table is there: a column, a key, a second primary key, a foreign key, a
        // check. In a new table its definition has the name twice.
        "1060" | "1061" | "1068" | "1826" | "3822" => !creates_a_table(&words),
        // MariaDB tells by a number of its storage that a foreign key is there.
        "1005" => error.to_string().contains(": 121 \"") && !creates_a_table(&words),
        // What it drops is not there: a table, a column, a key.
        "1051" | "1091" => true,
        // The same: a procedure or function, a trigger, a check, or on MariaDB a view. Others may
        // only name it.
        "1305" | "1360" | "3821" | "3940" | "4092" => drops(&words),
        // The column or the table is unknown. It is gone only if the statement has renamed it.
        "1054" => renames_a_column(&words),
        "1146" => renames_a_table(&words),
        _ => false,
    }
}

/// The words of a statement in capitals, without comments that end with their line.
fn words(statement: &str) -> Vec<String> {
    let code = statement.lines().filter_map(|line| line.split("--").next()?.split('#').next());
    let words = code.flat_map(|line| line.split(|c: char| c.is_whitespace() || c == ','));
    words.filter(|word| !word.is_empty()).map(str::to_ascii_uppercase).collect()
}

fn creates_a_table(words: &[String]) -> bool {
    // `CREATE OR REPLACE TEMPORARY TABLE` has the most words before the name.
    words.first().is_some_and(|first| first == "CREATE")
        && words.iter().take(5).any(|word| word == "TABLE")
}

fn drops(words: &[String]) -> bool {
    match words.first().map(String::as_str) {
        Some("DROP") => true,
        Some("ALTER") => words.iter().any(|word| word == "DROP"),
        _ => false,
    }
}

fn renames_a_column(words: &[String]) -> bool {
    words.iter().any(|word| word == "CHANGE") || has_pair(words, "RENAME", &["COLUMN"])
}

fn renames_a_table(words: &[String]) -> bool {
    let renames = words.first().is_some_and(|first| first == "RENAME");
    let alters = words.first().is_some_and(|first| first == "ALTER");
    let others = ["COLUMN", "INDEX", "KEY"];
    // `TO` may be left out.
    let mut pairs = words.windows(2);
    renames
        || alters && pairs.any(|pair| pair[0] == "RENAME" && !others.contains(&pair[1].as_str()))
}

/// Whether a statement would take back what it did if it ran again: it renames in a circle, or exchanges a
/// partition. No error tells that it has run.
pub(super) fn swaps(statement: &str) -> bool {
    let mut words = words(statement);
    words.retain(|word| word != "COLUMN");
    let first = words.first().map(String::as_str);
    if first == Some("ALTER") && has_pair(&words, "EXCHANGE", &["PARTITION"]) {
        return true;
    }
    if first != Some("RENAME") && first != Some("ALTER") {
        return false;
    }
    let renames: Vec<_> = words.windows(3).filter_map(renamed).filter(|(a, b)| a != b).collect();
    let from: BTreeSet<&str> = renames.iter().map(|(from, _)| *from).collect();
    let to: BTreeSet<&str> = renames.iter().map(|(_, to)| *to).collect();
    !from.is_empty() && from == to
}

/// What these three words rename, and to what: `a TO b`, or `CHANGE a b`.
fn renamed(words: &[String]) -> Option<(&str, &str)> {
    let name = |word: usize| words[word].trim_matches('`');
    if words[1] == "TO" {
        Some((name(0), name(2)))
    } else if words[0] == "CHANGE" {
        Some((name(1), name(2)))
    } else {
        None
    }
}

fn has_pair(words: &[String], first: &str, second: &[&str]) -> bool {
    words.windows(2).any(|pair| pair[0] == first && second.contains(&pair[1].as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::DbErrorKind;

    #[test]
    fn an_error_counts_only_for_statements_that_may_have_caused_it() {
        for (code, message, statement, has_run) in [
            ("1304", "", "CREATE PROCEDURE p() SELECT 1", true),
            ("1305", "", "drop procedure p", true),
            ("1305", "", "-- Why.\n\n  DROP FUNCTION f", true),
            ("1305", "", "-- Drop nothing.\nCREATE VIEW v AS SELECT f()", false),
            ("1305", "", "CALL p()", false),
            ("1360", "", "DROP TRIGGER t", true),
            ("3940", "", "ALTER TABLE t DROP CONSTRAINT c", true),
            ("3821", "", "ALTER TABLE t ALTER CHECK c NOT ENFORCED", false),
            ("4092", "", "DROP VIEW v", true),
            ("1826", "", "ALTER TABLE t ADD CONSTRAINT c CHECK (n > 0)", true),
            ("1826", "", "CREATE TABLE t (n int, CONSTRAINT c CHECK (n > 0))", false),
            ("1061", "", "CREATE UNIQUE INDEX i ON t (n)", true),
            (
                "1005",
                "Can't create table `d`.`t` (errno: 121 \"Duplicate key\")",
                "ALTER TABLE t",
                true,
            ),
            (
                "1005",
                "Can't create table `d`.`t` (errno: 150 \"Foreign key\")",
                "ALTER TABLE t",
                false,
            ),
            ("1054", "", "ALTER TABLE t RENAME COLUMN a TO b", true),
            ("1054", "", "# Rename column a.\nCREATE VIEW v AS SELECT a FROM t", false),
            ("1146", "", "RENAME TABLE a TO b", true),
            ("1146", "", "ALTER TABLE a RENAME TO b", true),
            ("1146", "", "ALTER TABLE a RENAME b", true),
            ("1146", "", "ALTER TABLE a RENAME COLUMN n TO m", false),
            ("1146", "", "CREATE VIEW v AS SELECT n FROM a", false),
            ("1064", "", "DROP PROCEDURE p", false),
        ] {
            let error = DbError::new(DbErrorKind::Other, message).with_code(code);
            assert_eq!(has_run_before(statement, &error), has_run, "{code}: {statement}");
        }
    }

    #[test]
    fn a_statement_that_renames_in_a_circle_swaps() {
        for (statement, is_swap) in [
            ("RENAME TABLE a TO t, b TO a, t TO b", true),
            ("-- Swap.\nrename table `a` to t,b to a,t to b", true),
            ("ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a", true),
            ("ALTER TABLE t CHANGE a b int, CHANGE COLUMN b a int", true),
            ("ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE t", true),
            ("RENAME TABLE a TO a_old, a_new TO a", false),
            ("RENAME TABLE a TO b", false),
            ("ALTER TABLE a RENAME TO b", false),
            ("ALTER TABLE t CHANGE a a bigint", false),
            ("ALTER TABLE t ADD COLUMN exchange int", false),
            ("UPDATE t SET text = 'a TO b, b TO a'", false),
            ("", false),
        ] {
            assert_eq!(swaps(statement), is_swap, "{statement}");
        }
    }
}
