//! What scripts leave behind: open transactions.

use ekbatan::prelude::*;
use support::TestDatabase;

const LIST: &str = "CREATE TABLE list (n integer NOT NULL)";

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
