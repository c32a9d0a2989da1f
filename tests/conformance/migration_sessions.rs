//! Scripts that leave their session so that their record could not be written, and scripts without a statement.

use std::time::Duration;

use ekbatan::db::MigrationError;
use ekbatan::prelude::*;
use futures_util::future::join_all;
use support::TestDatabase;

on_every_database! {
    a_script_without_a_statement_is_recorded,
}

async fn names(db: &TestDatabase) -> Vec<String> {
    let applied = db.databases.migrations().await.unwrap();
    applied
        .into_iter()
        .filter(|done| done.source == "application" && done.version >= 10)
        .map(|done| done.name)
        .collect()
}

async fn a_script_without_a_statement_is_recorded(db: &TestDatabase) {
    let texts = ["", " ;\n", "-- Nothing.\n", "/* Nothing. */"];
    let scripts = (10..).zip(texts).fold(Migrations::none(), |scripts, (version, text)| {
        scripts.script(version, "nothing", text)
    });
    for _ in 0..2 {
        db.databases.migrate(&scripts).await.unwrap();
    }
    assert_eq!(names(db).await, ["nothing"; 4]);
}

mod on_postgres {
    use ekbatan_testkit::PostgresServer;
    use sqlx::AssertSqlSafe;
    use support::{Recorder, ScratchDatabase};
    use tracing::Level;

    use super::*;

    on_every_database! {
        only postgres:
        a_script_that_waits_for_rows_is_refused,
        the_record_is_written_whatever_a_script_has_set,
        a_script_that_fails_leaves_a_session_that_can_be_used,
        what_is_deferred_runs_with_the_settings_of_its_script,
        a_session_is_reset_without_a_warning,
        a_released_raw_connection_has_no_transaction,
    }

    async fn a_script_that_waits_for_rows_is_refused(db: &TestDatabase) {
        let copy = "CREATE TABLE list (n integer); COPY list FROM STDIN";
        let scripts = Migrations::none().script(10, "copy", copy);
        let migrating = db.databases.migrate(&scripts);
        let migrated = tokio::time::timeout(Duration::from_secs(60), migrating).await;
        let error = migrated.expect("it waits for rows").unwrap_err();
        assert!(matches!(error, MigrationError::Failed { version: 10, .. }), "{error:?}");
        assert!(error.to_string().contains("use INSERT"), "{error}");
        // Nothing is left of it, and the next migration waits for nothing.
        let list = "CREATE TABLE list (n integer)";
        db.databases.migrate(&Migrations::none().script(10, "list", list)).await.unwrap();
        assert_eq!(names(db).await, ["list"]);
    }

    async fn the_record_is_written_whatever_a_script_has_set(db: &TestDatabase) {
        let config = db.config().maximum_pool_size(1);
        let databases = Databases::connect(&config.into()).await.unwrap();
        let role = format!("r{}", &Uuid::now_v7().simple().to_string()[1..]);
        let sets = format!(
            "CREATE ROLE {role}; DEALLOCATE ALL; SET client_encoding = 'LATIN1'; SET search_path = ''; SET ROLE {role}"
        );
        let scripts = Migrations::none().script(10, "größe", sets).script(
            11,
            "user",
            format!("SET SESSION AUTHORIZATION {role}"),
        );
        for _ in 0..2 {
            databases.migrate(&scripts).await.unwrap();
        }
        assert_eq!(names(db).await, ["größe", "user"]);
    }

    async fn a_script_that_fails_leaves_a_session_that_can_be_used(db: &TestDatabase) {
        let config = db.config().maximum_pool_size(1);
        let databases = Databases::connect(&config.into()).await.unwrap();
        let migrates = |text: &str| {
            let scripts = Migrations::none().script(10, "list", text);
            let databases = &databases;
            async move { databases.migrate(&scripts).await }
        };
        migrates("DEALLOCATE ALL; SELECT 1 / 0").await.unwrap_err();
        migrates("CREATE TABLE list (n integer)").await.unwrap();
        assert_eq!(names(db).await, ["list"]);
    }

    async fn what_is_deferred_runs_with_the_settings_of_its_script(db: &TestDatabase) {
        let text = "CREATE SCHEMA shop; SET search_path = shop; CREATE TABLE list (n integer); \
            CREATE TABLE sums (n integer); INSERT INTO sums VALUES (0); \
            CREATE FUNCTION counts() RETURNS trigger LANGUAGE plpgsql AS \
            'BEGIN UPDATE sums SET n = n + NEW.n; RETURN NULL; END'; \
            CREATE CONSTRAINT TRIGGER counts AFTER INSERT ON list DEFERRABLE INITIALLY DEFERRED \
            FOR EACH ROW EXECUTE FUNCTION counts(); INSERT INTO list VALUES (7)";
        db.databases.migrate(&Migrations::none().script(10, "shop", text)).await.unwrap();
        assert_eq!(db.count("shop.sums WHERE n = 7").await, 1);
    }

    async fn a_session_is_reset_without_a_warning(db: &TestDatabase) {
        let (recorder, _guard) = Recorder::start();
        let list = "CREATE TABLE list (n integer); SET work_mem = '1MB'";
        db.databases.migrate(&Migrations::none().script(10, "list", list)).await.unwrap();
        let mut raw = db.databases.postgres().await.unwrap();
        sqlx::raw_sql("SET work_mem = '1MB'").execute(raw.connection().unwrap()).await.unwrap();
        raw.release().await.unwrap();
        let all = recorder.all();
        assert!(!all.is_empty());
        let warnings: Vec<_> = all.iter().filter(|event| event.level <= Level::WARN).collect();
        assert!(warnings.is_empty(), "{warnings:?}");
    }

    async fn a_released_raw_connection_has_no_transaction(db: &TestDatabase) {
        let config = db.config().maximum_pool_size(1);
        let databases = Databases::connect(&config.into()).await.unwrap();
        let begins = "BEGIN; SET work_mem = '1MB'; CREATE TABLE list (n integer)";
        for (sql, works) in [(begins.to_owned(), true), (format!("{begins}; SELECT 1 / 0"), false)]
        {
            let mut raw = databases.postgres().await.unwrap();
            let ran = sqlx::raw_sql(AssertSqlSafe(sql)).execute(raw.connection().unwrap()).await;
            assert_eq!(ran.is_ok(), works);
            raw.release().await.unwrap();
            let list =
                "SELECT to_regclass('list') IS NULL AND current_setting('work_mem') <> '1MB'";
            let mut raw = databases.postgres().await.unwrap();
            let reset = sqlx::query_scalar(list).fetch_one(raw.connection().unwrap());
            let is_reset: bool = reset.await.unwrap();
            assert!(is_reset);
            raw.release().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_script_that_prepares_its_transaction_is_not_recorded() {
        let server = PostgresServer::builder().setting("max_prepared_transactions", "1");
        let server = server.start().await.unwrap();
        let scratch = ScratchDatabase::at(&server.create_database().await.unwrap());
        let databases = Databases::connect(&scratch.config().into()).await.unwrap();
        let scripts = |last: &str| {
            let text = format!("CREATE TABLE list (n integer){last}");
            Migrations::none().script(10, "prepares", text)
        };
        let prepares = scripts("; PREPARE TRANSACTION 'prepared'");
        match databases.migrate(&prepares).await.unwrap_err() {
            error @ MigrationError::EndedTransaction { version: 10, .. } => {
                assert!(error.to_string().contains("by ROLLBACK PREPARED"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        scratch.execute("ROLLBACK PREPARED 'prepared'").await;
        databases.migrate(&scripts("")).await.unwrap();
        assert_eq!(scratch.count("list").await, 0);
    }
}

mod on_sqlite {
    use super::*;

    on_every_database! {
        only sqlite:
        the_record_is_written_although_the_script_forbids_writes,
    }

    async fn the_record_is_written_although_the_script_forbids_writes(db: &TestDatabase) {
        let text = "CREATE TABLE list (n integer); PRAGMA query_only = ON";
        db.databases.migrate(&Migrations::none().script(10, "list", text)).await.unwrap();
        assert_eq!(names(db).await, ["list"]);
    }
}

mod on_mysql {
    use super::*;

    on_every_database! {
        only mysql and mariadb:
        the_record_is_written_whatever_a_script_has_left,
        a_script_that_cannot_be_committed_is_named,
        a_swap_that_was_interrupted_is_not_sent_again,
    }

    async fn the_record_is_written_whatever_a_script_has_left(db: &TestDatabase) {
        let scripts = Migrations::none()
            .script(
                10,
                "locks",
                "CREATE TABLE list (n integer); INSERT INTO list VALUES (1); LOCK TABLES list WRITE",
            )
            .script(
                11,
                "reads",
                "INSERT INTO list VALUES (2); SET SESSION TRANSACTION READ ONLY",
            );
        let others = [db.open_again().await, db.open_again().await];
        for migrated in join_all(others.iter().map(|other| other.migrate(&scripts))).await {
            migrated.unwrap();
        }
        db.databases.migrate(&scripts).await.unwrap();
        assert_eq!(names(db).await, ["locks", "reads"]);
        assert_eq!(db.count("list").await, 2);
    }

    async fn a_script_that_cannot_be_committed_is_named(db: &TestDatabase) {
        // Names of distributed transactions are those of the whole server.
        let name = db.url.rsplit('/').next().unwrap();
        let scripts = Migrations::none().script(10, "list", "CREATE TABLE list (n integer)");
        let open = format!("XA START '{name}'; INSERT INTO list VALUES (1)");
        let error = db.databases.migrate(&scripts.script(11, "open", open)).await.unwrap_err();
        let error = error.to_string();
        let is_named = error.starts_with("migration 11 `open` failed on ")
            && error.contains(": the COMMIT after the script");
        assert!(is_named && error.contains("undo them by hand"), "{error}");
        assert_eq!(names(db).await, ["list"]);
        assert_eq!(db.count("list").await, 0);
    }

    async fn a_swap_that_was_interrupted_is_not_sent_again(db: &TestDatabase) {
        db.execute(
            "CREATE TABLE a (n integer); CREATE TABLE b (n integer); INSERT INTO a VALUES (1)",
        )
        .await;
        let swap = "RENAME TABLE a TO t, b TO a, t TO b";
        let (log, of) = (db.eventlog("migrations"), db.url.rsplit('/').next().unwrap());
        let mut rows_of_a = 1;
        for (version, known, has_run) in [(10, "1 done", true), (11, "0 done", false)] {
            db.execute(&format!(
                "INSERT INTO {log} VALUES ('begun:application:{of}', {version}, 'swap', '0 done, one sent', now())"
            ))
            .await;
            let script = Migrations::none().script(version, "swap", swap);
            let error = db.databases.migrate(&script).await.unwrap_err().to_string();
            let row = format!("WHERE source = 'begun:application:{of}' AND version = {version}");
            let says = error.contains(&row) && error.contains(&format!("checksum = '{known}'"));
            assert!(error.starts_with(&format!("migration {version} `swap` failed")), "{error}");
            assert!(says, "{error}");
            assert_eq!(db.count("a").await, rows_of_a);
            db.execute(&format!("UPDATE {log} SET checksum = '{known}' {row}")).await;
            for _ in 0..2 {
                db.databases.migrate(&script).await.unwrap();
            }
            if !has_run {
                rows_of_a = 1 - rows_of_a;
            }
            assert_eq!(db.count("a").await, rows_of_a);
        }
    }
}
