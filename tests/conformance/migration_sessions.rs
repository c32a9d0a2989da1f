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
    use super::*;

    on_every_database! {
        only postgres:
        a_script_that_waits_for_rows_is_refused,
        the_record_is_written_whatever_a_script_has_set,
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
}

mod on_mysql {
    use super::*;

    on_every_database! {
        only mysql and mariadb:
        the_record_is_written_whatever_a_script_has_left,
        a_script_that_cannot_be_committed_is_named,
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
        let is_named = error.starts_with("migration 11 `open` failed: the COMMIT after the script");
        assert!(is_named && error.contains("undo them by hand"), "{error}");
        assert_eq!(names(db).await, ["list"]);
        assert_eq!(db.count("list").await, 0);
    }
}
