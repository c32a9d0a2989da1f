//! Migrations on databases that commit each statement by itself.
//!
//! A process may end in the middle of one. So a row of the history says how many of its statements
//! have run, and whether the next one was sent. The next run begins behind them. If the statement
//! that was sent had run, it fails now, because what it creates is there; it is passed over.
//!
//! The statement of an application may be one that changes rows, which would change them twice. So it
//! runs in a transaction that also stores that the migration has run. One that creates something
//! ends the transaction before it begins.

use super::history::{AppliedMigration, record, recorded_source};
use super::script::{APPLICATION, FRAMEWORK};
use crate::clock::to_micros;
use crate::db::eventlog::MIGRATIONS;
use crate::db::{Arg, Connection, DbError, DbErrorKind, Driver, Query, TransactionOptions};
use crate::domain::{ColumnDef, Value, ValueType};

/// The source of rows that say how far a migration is.
const BEGUN: &str = "begun";

/// How far a migration is.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Progress {
    /// So many statements have run.
    done: usize,
    /// Whether the next one was sent, and nothing is known of it.
    sent: bool,
}

impl Progress {
    fn text(self) -> String {
        format!("{} done{}", self.done, if self.sent { ", one sent" } else { "" })
    }

    fn read(text: &str) -> Self {
        let (done, rest) = text.split_once(" done").unwrap_or_default();
        Self { done: done.parse().unwrap_or_default(), sent: !rest.is_empty() }
    }
}

/// Runs the statements of a migration, or those that an earlier process left out. A transaction may
/// be open afterwards, which [`end`] and the end of the migration complete.
pub(super) async fn run(
    connection: &mut dyn Connection,
    driver: &dyn Driver,
    migration: &AppliedMigration,
    statements: &[&str],
) -> Result<(), DbError> {
    let rows = ProgressRow { driver, migration };
    let earlier = match rows.read(connection).await? {
        Some(progress) => progress,
        None => {
            rows.add(connection).await?;
            Progress::default()
        }
    };
    let in_transaction = migration.source == APPLICATION;
    for (done, statement) in statements.iter().enumerate().skip(earlier.done) {
        let was_sent = earlier == Progress { done, sent: true };
        if was_sent && driver.syntax().swaps(statement) {
            return Err(rows.in_doubt(done));
        }
        rows.store(connection, Progress { done, sent: true }).await?;
        if in_transaction {
            connection.begin(&TransactionOptions::default()).await?;
        }
        let Err(error) = connection.script(statement).await else { continue };
        let has_run = was_sent && driver.syntax().has_run_before(statement, &error);
        if has_run && (!in_transaction || has_ended(connection).await) {
            tracing::info!(migration = migration.version, %error, "the statement that an interrupted migration had sent has run");
            continue;
        }
        if !error.is_connection_lost() {
            if in_transaction {
                connection.end(false).await?;
            }
            rows.store(connection, Progress { done, sent: false }).await?;
        }
        return Err(error);
    }
    Ok(())
}

/// Whether the statement that failed has ended its transaction. If not, it changes rows, and what an
/// interrupted process had changed by it was rolled back.
async fn has_ended(connection: &mut dyn Connection) -> bool {
    connection.end(true).await.is_err()
}

/// Stores that a migration has run, in the row that said how far it was. One statement does both:
/// a process that ended between two would leave a row that nothing deletes.
pub(super) async fn end(
    connection: &mut dyn Connection,
    driver: &dyn Driver,
    migration: &AppliedMigration,
) -> Result<(), DbError> {
    ProgressRow { driver, migration }.complete(connection).await
}

/// The row of a migration.
struct ProgressRow<'m> {
    driver: &'m dyn Driver,
    migration: &'m AppliedMigration,
}

impl ProgressRow<'_> {
    fn source(&self) -> String {
        format!("{BEGUN}:{}", recorded_source(&self.migration.source, self.driver))
    }

    /// The error of a statement that was sent, and that would take back what it did if it is sent again.
    fn in_doubt(&self, done: usize) -> DbError {
        let set = |done| format!("SET checksum = '{}'", Progress { done, sent: false }.text());
        let (table, source) = (self.driver.syntax().table(&MIGRATIONS), self.source());
        let why = format!(
            "an earlier run was interrupted at this statement, and if it has run, it would take back now what it did: look \
             whether it has run. If it has, UPDATE {table} {} WHERE source = '{source}' AND version = {}; if it has not, {}",
            set(done + 1),
            self.migration.version,
            set(done)
        );
        DbError::new(DbErrorKind::Other, why)
    }

    async fn read(&self, connection: &mut dyn Connection) -> Result<Option<Progress>, DbError> {
        let sql = "SELECT checksum FROM {} WHERE source = $1 AND version = $2";
        let rows = self.ask(connection, sql, Vec::new(), MIGRATIONS.columns[3..4].to_vec()).await?;
        Ok(rows.first().map(|row| match &row[0] {
            Value::Text(text) => Progress::read(text),
            _ => Progress::default(),
        }))
    }

    async fn add(&self, connection: &mut dyn Connection) -> Result<(), DbError> {
        let checksum = Progress::default().text();
        let row = AppliedMigration { source: self.source(), checksum, ..self.migration.clone() };
        record(connection, self.driver, row).await
    }

    async fn store(&self, connection: &mut dyn Connection, to: Progress) -> Result<(), DbError> {
        let sql = "UPDATE {} SET checksum = $3 WHERE source = $1 AND version = $2";
        self.ask(connection, sql, vec![text(to.text())], Vec::new()).await.map(drop)
    }

    async fn complete(&self, connection: &mut dyn Connection) -> Result<(), DbError> {
        let sql = "UPDATE {} SET checksum = $3, source = $4, name = $5, applied_date = $6 WHERE source = $1 AND version = $2";
        let done = self.migration.clone();
        let source = recorded_source(&done.source, self.driver).to_owned();
        let date = Value::Timestamp(to_micros(done.applied_date));
        let date = Arg::One(ValueType::Timestamp, date);
        let set = vec![text(done.checksum), text(source), text(done.name), date];
        self.ask(connection, sql, set, Vec::new()).await.map(drop)
    }

    /// Sends a statement about the row; `{}` stands for the table, and `set` follows the two
    /// arguments that name the row.
    async fn ask(
        &self,
        connection: &mut dyn Connection,
        sql: &str,
        set: Vec<Arg>,
        columns: Vec<ColumnDef>,
    ) -> Result<Vec<Vec<Value>>, DbError> {
        let sql = sql.replace("{}", &self.driver.syntax().table(&MIGRATIONS)).into();
        let version = Arg::One(ValueType::Int, Value::Int(self.migration.version));
        let args = [text(self.source()), version].into_iter().chain(set).collect();
        connection.fetch(&Query { sql, args, columns: columns.into() }).await
    }
}

fn text(text: String) -> Arg {
    Arg::One(ValueType::Text, Value::Text(text))
}

/// The statements of a script, if it is known where each of them ends: in the framework's own
/// scripts a semicolon ends a line only with its statement, and the application's may have a single
/// statement.
pub(super) fn statements<'t>(source: &str, text: &'t str) -> Option<Vec<&'t str>> {
    let is_comment = |line: &str| line.trim().is_empty() || line.starts_with("--");
    if source == FRAMEWORK {
        let all = text.split_inclusive(";\n");
        return Some(all.filter(|statement| !statement.lines().all(is_comment)).collect());
    }
    let text = text.trim_end_matches(|c: char| c == ';' || c.is_whitespace());
    if text.is_empty() {
        return Some(Vec::new());
    }
    (!text.contains(';')).then(|| vec![text])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_divided_where_its_statements_surely_end() {
        let two = "-- Why.\nCREATE TABLE a (\n    n int\n);\n\n-- Also.\nALTER TABLE a\n    ADD m int;\n\n-- The end.\n";
        let second = "\n-- Also.\nALTER TABLE a\n    ADD m int;\n";
        let parts = statements(FRAMEWORK, two).unwrap();
        assert_eq!(parts, ["-- Why.\nCREATE TABLE a (\n    n int\n);\n", second]);
        assert_eq!(statements("application", two), None);
        let one = "CREATE TABLE a (n int)";
        assert_eq!(statements("application", &format!("{one};\n")), Some(vec![one]));
        assert_eq!(statements("application", "INSERT INTO a VALUES (';')"), None);
        assert_eq!(statements("application", " ;\n; "), Some(Vec::new()));
    }

    #[test]
    fn progress_is_read_as_it_was_written() {
        for (done, sent) in [(0, false), (0, true), (12, false), (12, true)] {
            let progress = Progress { done, sent };
            assert_eq!(Progress::read(&progress.text()), progress);
        }
    }
}
