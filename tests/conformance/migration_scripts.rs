//! What scripts leave behind: settings of their session and open transactions.

use ekbatan::prelude::*;
use support::things::Thing;
use support::{Dialect, TestDatabase};

use crate::actions::Refused;
use crate::sessions::evaluate;

on_every_database! {
    what_a_script_sets_ends_with_it,
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

    async fn a_statement_that_has_run_is_passed_over(db: &TestDatabase) {
        db.execute(LIST).await;
        for (version, statement, has_run) in [
            (10, "DROP TABLE other", true),
            (11, "ALTER TABLE list RENAME COLUMN old TO n", true),
            // What has run of it was rolled back, so it is wrong.
            (12, "UPDATE list SET old = 1", false),
        ] {
            let (log, of) = (db.eventlog("migrations"), db.url.rsplit('/').next().unwrap());
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
