//! What scripts leave behind: settings of their session, open transactions, and rows that refer to a
//! table that was built anew.

use ekbatan::db::MigrationError;
use ekbatan::prelude::*;
use support::things::Thing;
use support::{Dialect, TestDatabase};

use crate::actions::Refused;
use crate::sessions::evaluate;

on_every_database! {
    what_a_script_sets_ends_with_it,
}

on_every_database! {
    on_sqlite_only:
    a_table_that_is_built_anew_keeps_its_children,
    a_script_that_leaves_children_without_a_parent_is_refused,
    children_that_had_no_parent_before_are_accepted,
    a_script_that_breaks_a_foreign_key_is_refused,
    what_was_broken_before_is_accepted,
}

const LIST: &str = "CREATE TABLE list (n integer NOT NULL)";

async fn what_a_script_sets_ends_with_it(db: &TestDatabase) {
    let databases = Databases::connect(&db.config().maximum_pool_size(1).into()).await.unwrap();
    let setting = match db.dialect {
        Dialect::Sqlite => "CREATE TEMPORARY TABLE things (n integer)",
        Dialect::Postgres => "SELECT pg_catalog.set_config('search_path', '', false)",
        Dialect::MySql | Dialect::MariaDb => "SET sql_mode = '', autocommit = 0",
    };
    let broken = format!("{setting}; INSERT INTO nowhere VALUES (1)");
    let scripts = Migrations::none().script(10, "setting", setting).script(11, "list", LIST);
    databases.migrate(&scripts).await.unwrap();
    for failed in [false, true] {
        if failed {
            let scripts = scripts.clone().script(12, "broken", &broken);
            databases.migrate(&scripts).await.unwrap_err();
        }
        assert_eq!(databases.repository::<Thing>().count().await.unwrap(), 0);
        if db.dialect.is_mysql() {
            let manager = databases.transactions();
            let setting = manager.in_transaction(async |tx| {
                Ok::<_, Refused>(evaluate(db, &tx, "CONCAT(@@autocommit + 0, @@sql_mode)").await)
            });
            let setting = setting.await.unwrap();
            let is_ours = setting.starts_with('1') && setting.contains("STRICT_ALL_TABLES");
            assert!(is_ours, "{setting}");
        }
    }
}

const FAMILY: &str = "CREATE TABLE parents (id integer PRIMARY KEY); \
    CREATE TABLE children (parent integer REFERENCES parents ON DELETE CASCADE); \
    INSERT INTO parents VALUES (1); INSERT INTO children VALUES (1)";

async fn a_table_that_is_built_anew_keeps_its_children(db: &TestDatabase) {
    let anew = "PRAGMA foreign_keys = OFF; CREATE TABLE new_parents (id integer PRIMARY KEY, name text); \
                INSERT INTO new_parents (id) SELECT id FROM parents; DROP TABLE parents; \
                ALTER TABLE new_parents RENAME TO parents; PRAGMA foreign_keys = ON";
    let scripts = Migrations::none().script(10, "family", FAMILY).script(11, "names", anew);
    db.databases.migrate(&scripts).await.unwrap();
    assert_eq!((db.count("children").await, db.count("parents").await), (1, 1));
    let mut raw = db.databases.sqlite().await.unwrap();
    let orphan = sqlx::raw_sql("INSERT INTO children VALUES (7)");
    orphan.execute(raw.connection().unwrap()).await.unwrap_err();
}

async fn a_script_that_leaves_children_without_a_parent_is_refused(db: &TestDatabase) {
    let scripts = Migrations::none().script(10, "family", FAMILY);
    let scripts = scripts.script(11, "delete", "DELETE FROM parents");
    let error = db.databases.migrate(&scripts).await.unwrap_err();
    assert!(matches!(error, MigrationError::Failed { version: 11, .. }), "{error:?}");
    let names =
        error.to_string().contains("1 row(s) of `children` would refer to rows of `parents`");
    assert!(names, "{error}");
    assert_eq!((db.count("children").await, db.count("parents").await), (1, 1));
}

async fn children_that_had_no_parent_before_are_accepted(db: &TestDatabase) {
    let scripts = Migrations::none().script(10, "family", FAMILY);
    db.databases.migrate(&scripts).await.unwrap();
    db.execute("PRAGMA foreign_keys = OFF; INSERT INTO children VALUES (8), (9)").await;
    let scripts = scripts.script(11, "list", LIST);
    db.databases.migrate(&scripts).await.unwrap();
    let scripts = scripts.script(12, "rename", "ALTER TABLE children RENAME TO kids");
    db.databases.migrate(&scripts).await.unwrap();
    let scripts = scripts.script(13, "delete", "DELETE FROM parents");
    let error = db.databases.migrate(&scripts).await.unwrap_err();
    assert!(error.to_string().contains("1 row(s) of `kids`"), "{error}");
}

/// The new table has no primary key, to which the children refer.
const WITHOUT_KEY: &str = "CREATE TABLE new_parents AS SELECT * FROM parents; DROP TABLE parents; \
    ALTER TABLE new_parents RENAME TO parents";

async fn a_script_that_breaks_a_foreign_key_is_refused(db: &TestDatabase) {
    let scripts = Migrations::none().script(10, "family", FAMILY);
    let error = db.databases.migrate(&scripts.script(11, "anew", WITHOUT_KEY)).await.unwrap_err();
    assert!(error.to_string().contains("foreign key mismatch"), "{error}");
    db.execute("INSERT INTO children VALUES (1)").await;
}

async fn what_was_broken_before_is_accepted(db: &TestDatabase) {
    let scripts = Migrations::none().script(10, "family", FAMILY);
    db.databases.migrate(&scripts).await.unwrap();
    let broken =
        format!("PRAGMA foreign_keys = OFF; INSERT INTO children VALUES (8); {WITHOUT_KEY}");
    db.execute(&broken).await;
    let scripts = scripts.script(11, "list", LIST);
    db.databases.migrate(&scripts).await.unwrap();
    let mend = "CREATE TABLE new_parents (id integer PRIMARY KEY); INSERT INTO new_parents SELECT id FROM parents; \
                DROP TABLE parents; ALTER TABLE new_parents RENAME TO parents";
    db.databases.migrate(&scripts.script(12, "mend", mend)).await.unwrap();
    db.execute("INSERT INTO children VALUES (1)").await;
}

/// On the databases that commit each `CREATE`, `ALTER` and `DROP` by itself.
mod on_mysql {
    use super::*;

    on_every_database! {
        only mysql and mariadb:
        a_transaction_that_a_script_leaves_open_is_committed,
        a_statement_that_has_run_is_passed_over,
    }

    async fn a_transaction_that_a_script_leaves_open_is_committed(db: &TestDatabase) {
        let open = "SET autocommit = 0; CREATE TABLE list (n integer); INSERT INTO list VALUES (1)";
        let scripts = Migrations::none().script(10, "list", open);
        for _ in 0..2 {
            db.databases.migrate(&scripts).await.unwrap();
        }
        assert_eq!(db.count("list").await, 1);
    }

    /// What a process that was killed within a statement may have left, and what it may find.
    const THERE: [&str; 5] = [
        LIST,
        "CREATE TABLE parents (id integer PRIMARY KEY)",
        "CREATE TABLE children (parent integer, n integer, CONSTRAINT of_parent FOREIGN KEY (parent) \
         REFERENCES parents (id), CONSTRAINT positive CHECK (n > 0))",
        "CREATE PROCEDURE nothing() SELECT 1",
        "CREATE TRIGGER always_one BEFORE INSERT ON list FOR EACH ROW SET NEW.n = 1",
    ];

    async fn a_statement_that_has_run_is_passed_over(db: &TestDatabase) {
        for there in THERE {
            db.execute(there).await;
        }
        // Nothing says that it was sent, not even after it has failed.
        let wrong = Migrations::none().script(9, "wrong", "DROP PROCEDURE other");
        for _ in 0..2 {
            db.databases.migrate(&wrong).await.unwrap_err();
        }
        let statements = [
            ("DROP TABLE other", true),
            (LIST, true),
            ("ALTER TABLE list RENAME COLUMN old TO n", true),
            ("ALTER TABLE list change old n integer NOT NULL", true),
            (
                "ALTER TABLE children ADD CONSTRAINT of_parent FOREIGN KEY (parent) REFERENCES parents (id)",
                true,
            ),
            ("ALTER TABLE children ADD CONSTRAINT positive CHECK (n > 0)", true),
            ("ALTER TABLE children DROP CONSTRAINT other", true),
            ("CREATE PROCEDURE nothing() SELECT 1", true),
            ("-- It is gone.\nDROP PROCEDURE other", true),
            ("DROP FUNCTION other", true),
            ("CREATE TRIGGER always_one BEFORE INSERT ON list FOR EACH ROW SET NEW.n = 1", true),
            ("DROP TRIGGER other", true),
            ("DROP VIEW other", true),
            ("RENAME TABLE other TO list", true),
            ("ALTER TABLE other RENAME TO list", true),
            // What has run of it was rolled back, so it is wrong.
            ("UPDATE list SET old = 1", false),
            // The process was killed before the server ran these, and it never can.
            (
                "CREATE TABLE twice (n integer, CONSTRAINT c CHECK (n > 0), CONSTRAINT c CHECK (n < 9))",
                false,
            ),
            ("CREATE VIEW typo AS SELECT old FROM list", false),
            ("-- Rename column, or drop it.\nCREATE VIEW typo AS SELECT old FROM list", false),
            ("CREATE VIEW typo AS SELECT n FROM other", false),
            ("CREATE VIEW typo AS SELECT other() AS n", false),
            (
                "ALTER TABLE children ADD CONSTRAINT wrong FOREIGN KEY (parent) REFERENCES list (n)",
                false,
            ),
        ];
        let (log, of) = (db.eventlog("migrations"), db.url.rsplit('/').next().unwrap());
        for (version, (statement, has_run)) in (10..).zip(statements) {
            db.execute(&format!(
                "INSERT INTO {log} VALUES ('begun:application:{of}', {version}, 'interrupted', '0 done, one sent', now())"
            ))
            .await;
            let script = Migrations::none().script(version, "interrupted", statement);
            let migrated = db.databases.migrate(&script).await;
            assert_eq!(migrated.is_ok(), has_run, "{statement}: {migrated:?}");
        }
    }
}
