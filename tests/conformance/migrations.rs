//! Migrations are applied once, in order, and completely or not at all.

use std::path::Path;

use ekbatan::config::DataSourceConfig;
use ekbatan::db::MigrationError;
use ekbatan::prelude::*;
use futures_util::future::join_all;
use support::things::{THINGS, migrations};
use support::{Dialect, Recorder, TestDatabase, stored_instant};

on_every_database! {
    migrations_are_applied_once_and_recorded,
    several_processes_may_migrate_at_once,
    an_edited_migration_is_refused,
    a_failing_script_is_named_with_what_it_left_behind,
    a_folder_is_read_in_order_of_its_numbers,
    a_folder_may_hold_a_folder_per_dialect,
    a_migration_without_a_script_for_the_dialect_is_refused,
    a_script_with_a_nul_character_is_refused_before_anything_runs,
    a_byte_order_mark_is_not_sent,
}

on_every_database! {
    on_sqlite_only:
    a_database_of_a_later_framework_is_warned_of,
    a_missing_folder_is_named,
    a_missing_folder_of_the_dialect_is_named,
    a_file_without_a_number_is_named,
    two_migrations_with_one_number_are_refused,
    a_file_that_is_not_utf8_is_named,
    a_script_of_sqlite_that_ends_the_transaction_is_not_recorded,
}

const LIST: &str = "CREATE TABLE list (n integer NOT NULL)";

async fn applied(db: &TestDatabase) -> Vec<(String, i64, String)> {
    let applied = db.databases.migrations().await.unwrap();
    applied.into_iter().map(|done| (done.source, done.version, done.name)).collect()
}

async fn migrations_are_applied_once_and_recorded(db: &TestDatabase) {
    let before = db.databases.migrations().await.unwrap();
    assert!(before.iter().all(|done| done.applied_date == stored_instant(0)));
    db.databases.migrate(&migrations()).await.unwrap();
    assert_eq!(db.databases.migrations().await.unwrap(), before);
    let known = |source: &str, version, name: &str| (source.to_owned(), version, name.to_owned());
    let application =
        [known("application", 1, "create_wallets"), known("application", 2, "create_things")];
    let applied = applied(db).await;
    assert!(applied[..applied.len() - 2].iter().all(|(source, ..)| source == "ekbatan"));
    assert_eq!(applied[applied.len() - 2..], application);
}

async fn several_processes_may_migrate_at_once(db: &TestDatabase) {
    let empty = TestDatabase::start_empty(&THINGS, db.dialect).await;
    let starts = (0..4).map(|_| async {
        let databases = empty.open_again().await;
        databases.migrate(&migrations()).await
    });
    for started in join_all(starts).await {
        started.unwrap();
    }
    let names = async |db| -> Vec<_> {
        applied(db).await.into_iter().map(|(_, version, name)| (version, name)).collect()
    };
    assert_eq!(names(&empty).await, names(db).await);
    assert_eq!(empty.count("things").await, 0);
}

async fn an_edited_migration_is_refused(db: &TestDatabase) {
    let first = Migrations::none().script(10, "list", LIST);
    db.databases.migrate(&first).await.unwrap();
    let edited = Migrations::none().script(10, "list", format!("{LIST} ")).script(
        11,
        "later",
        "CREATE TABLE later (n integer)",
    );
    match db.databases.migrate(&edited).await.unwrap_err() {
        MigrationError::Edited { version: 10, name, .. } => assert_eq!(name, "list"),
        other => panic!("{other:?}"),
    }
    assert!(applied(db).await.iter().all(|(_, _, name)| name != "later"));
}

async fn a_database_of_a_later_framework_is_warned_of(db: &TestDatabase) {
    let warnings = async || {
        let (recorder, _guard) = Recorder::start();
        db.databases.migrate(&migrations()).await.unwrap();
        let warnings = recorder.all().into_iter().filter(|of| of.level == tracing::Level::WARN);
        warnings.map(|of| of.field("name").map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(warnings().await, []);
    let table = db.eventlog("migrations");
    db.execute(&format!(
        "INSERT INTO {table} (source, version, name, checksum, applied_date) \
         SELECT source, 999, 'from_the_future', checksum, applied_date FROM {table} \
         WHERE source = 'ekbatan' AND version = 1"
    ))
    .await;
    assert_eq!(warnings().await, [Some("from_the_future".to_owned())]);
}

async fn a_failing_script_is_named_with_what_it_left_behind(db: &TestDatabase) {
    let broken = |last: &str| {
        Migrations::none().script(10, "list", LIST).script(
            11,
            "broken",
            format!("CREATE TABLE other (n integer); {last}"),
        )
    };
    let error = db.databases.migrate(&broken("INSERT INTO nowhere VALUES (1)")).await.unwrap_err();
    match &error {
        MigrationError::Failed { version: 11, name, .. } => assert_eq!(name, "broken"),
        other => panic!("{other:?}"),
    }
    assert!(error.to_string().contains("nowhere"), "{error}");
    assert_eq!(applied(db).await.last().map(|(_, version, _)| *version), Some(10));
    assert_eq!(
        error.to_string().contains("before the one that failed stay"),
        db.dialect.is_mysql()
    );
    if db.dialect.is_mysql() {
        assert!(!db.databases.capabilities().atomic_migrations);
        db.execute("DROP TABLE other").await;
    }
    // Creating the table fails if the first attempt left it behind.
    db.databases.migrate(&broken("INSERT INTO other VALUES (1)")).await.unwrap();
    assert_eq!((db.count("other").await, db.count("list").await), (1, 0));
}

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

async fn a_folder_is_read_in_order_of_its_numbers(db: &TestDatabase) {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "0020_fill_list.sql", "INSERT INTO list VALUES (20)");
    write(folder.path(), "3_create_list.sql", LIST);
    write(folder.path(), "notes.txt", "not a migration");
    db.databases.migrate(&Migrations::dir(folder.path())).await.unwrap();
    assert_eq!(db.select(&["n"], "FROM list").await, [[Some("20".to_owned())]]);
    let names: Vec<_> = applied(db).await.into_iter().map(|(.., name)| name).collect();
    assert!(names.ends_with(&["create_list".to_owned(), "fill_list".to_owned()]), "{names:?}");
}

async fn a_folder_may_hold_a_folder_per_dialect(db: &TestDatabase) {
    let folder = tempfile::tempdir().unwrap();
    let dialects = [("sqlite", "1"), ("postgres", "2"), ("mysql", "3"), ("mariadb", "4")];
    for (dialect, n) in dialects {
        let own = folder.path().join(dialect);
        std::fs::create_dir(&own).unwrap();
        write(&own, "0010_list.sql", &format!("{LIST}; INSERT INTO list VALUES ({n})"));
    }
    db.databases.migrate(&Migrations::dir(folder.path())).await.unwrap();
    let own = dialects.iter().find(|(name, _)| *name == db.databases.capabilities().dialect.name());
    let expected = own.map(|(_, n)| (*n).to_owned());
    assert_eq!(db.select(&["n"], "FROM list").await, [[expected]]);
}

async fn a_missing_folder_is_named(db: &TestDatabase) {
    let missing = tempfile::tempdir().unwrap().path().join("missing");
    match db.databases.migrate(&Migrations::dir(&missing)).await.unwrap_err() {
        MigrationError::Folder { folder, .. } => assert_eq!(folder, missing),
        other => panic!("{other:?}"),
    }
}

async fn a_missing_folder_of_the_dialect_is_named(db: &TestDatabase) {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("postgresql");
    std::fs::create_dir(&other).unwrap();
    write(&other, "0010_list.sql", LIST);
    let scripts = Migrations::dir(folder.path());
    let own = folder.path().join("sqlite");
    match db.databases.migrate(&scripts).await.unwrap_err() {
        MigrationError::NoFolder { folder, dialect, .. } => {
            assert_eq!((folder, dialect.name()), (own.clone(), "sqlite"));
        }
        other => panic!("{other:?}"),
    }
    std::fs::create_dir(&own).unwrap();
    db.databases.migrate(&scripts).await.unwrap();
}

async fn a_file_without_a_number_is_named(db: &TestDatabase) {
    for name in ["create_list.sql", "10.sql", "x1_list.sql"] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), name, LIST);
        match db.databases.migrate(&Migrations::dir(folder.path())).await.unwrap_err() {
            MigrationError::Name(path) => assert_eq!(path, folder.path().join(name)),
            other => panic!("{name}: {other:?}"),
        }
    }
}

async fn two_migrations_with_one_number_are_refused(db: &TestDatabase) {
    let other = LIST.replace("list", "other");
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "0010_list.sql", LIST);
    let none = Migrations::none;
    let of = ekbatan::db::Dialect::Sqlite;
    for (second_name, twice) in [
        ("other", none().script(10, "list", LIST).script(10, "other", &other)),
        ("list", none().script(10, "list", LIST).script(10, "list", &other)),
        ("list", none().script(10, "list", LIST).script(10, "list", LIST)),
        ("list", none().script_for(of, 10, "list", LIST).script_for(of, 10, "list", &other)),
        ("list", Migrations::dir(folder.path()).script(10, "list", &other)),
        ("other", Migrations::dir(folder.path()).script_for(of, 10, "other", &other)),
    ] {
        match db.databases.migrate(&twice).await.unwrap_err() {
            MigrationError::Twice { version: 10, first, second, .. } => {
                let mut names = [&*first, &*second];
                names.sort_unstable();
                assert_eq!(names, ["list", second_name]);
            }
            other => panic!("{other:?}"),
        }
    }
    let is_applied =
        |(source, version, _): &(String, i64, String)| source == "application" && *version == 10;
    assert!(!applied(db).await.iter().any(is_applied));
}

async fn a_file_that_is_not_utf8_is_named(db: &TestDatabase) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("0010_list.sql");
    std::fs::write(&path, b"-- caf\xe9").unwrap();
    let error = db.databases.migrate(&Migrations::dir(folder.path())).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "the migration `{}` is not UTF-8: see its byte 6; save it as UTF-8",
            path.display()
        )
    );
}

async fn a_migration_without_a_script_for_the_dialect_is_refused(db: &TestDatabase) {
    use ekbatan::db::Dialect::{Postgres, Sqlite};
    let other = if db.dialect == Dialect::Postgres { Sqlite } else { Postgres };
    let script = Migrations::none().script_for(other, 10, "list", LIST);
    match db.databases.migrate(&script).await.unwrap_err() {
        MigrationError::NoText { version: 10, name, dialect, .. } => {
            assert_eq!((&*name, dialect), ("list", db.databases.capabilities().dialect));
        }
        other => panic!("{other:?}"),
    }
}

async fn a_script_with_a_nul_character_is_refused_before_anything_runs(db: &TestDatabase) {
    let scripts = Migrations::none().script(10, "list", LIST);
    for text in ["CREATE TABLE other (n integer)\0", "CREATE TABLE other (n integer)\0; SELECT 1"] {
        let scripts = scripts.clone().script(11, "other", text);
        let error = db.databases.migrate(&scripts).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "migration 11 `other` contains a NUL character: see its byte 30; remove it, or save the file as UTF-8 if it is UTF-16"
        );
    }
    assert!(applied(db).await.iter().all(|(.., name)| name != "list"));
}

/// The checksum is that of the text with the mark, as earlier versions recorded it on SQLite.
async fn a_byte_order_mark_is_not_sent(db: &TestDatabase) {
    let with_mark = format!("\u{feff}{LIST}");
    for _ in 0..2 {
        let scripts = Migrations::none().script(10, "list", with_mark.clone());
        db.databases.migrate(&scripts).await.unwrap();
    }
    assert_eq!(db.count("list").await, 0);
    let recorded = db.databases.migrations().await.unwrap().pop().unwrap();
    let of_the_whole_text = "2dca6380eef51b9bdc7f95c097c6dbcc26630f26a6f52c0ed83bfd3825bb58f7";
    assert_eq!((recorded.version, &*recorded.checksum), (10, of_the_whole_text));
}

/// Checks that each script is refused with the reason, and not recorded.
async fn ends_the_transaction(db: &TestDatabase, scripts: &[&str]) {
    for (version, script) in (10..).zip(scripts) {
        let migration = Migrations::none().script(version, "ends", *script);
        let error = db.databases.migrate(&migration).await.expect_err(script).to_string();
        let expected = format!(
            "migration {version} `ends` ended the transaction that the framework opened for it"
        );
        assert!(error.starts_with(&expected), "{script}: {error}");
    }
    assert!(applied(db).await.iter().all(|(.., name)| name != "ends"));
    db.databases.migrate(&Migrations::none().script(30, "list", LIST)).await.unwrap();
}

async fn a_script_of_sqlite_that_ends_the_transaction_is_not_recorded(db: &TestDatabase) {
    let scripts = [
        "COMMIT",
        "ROLLBACK",
        "CREATE TABLE a (n integer); COMMIT; CREATE TABLE b (n integer); BEGIN",
        "CREATE TABLE c (n integer); ROLLBACK; BEGIN IMMEDIATE",
        "COMMIT; BEGIN; COMMIT",
    ];
    ends_the_transaction(db, &scripts).await;
    let nested = "SAVEPOINT s; CREATE TABLE d (n integer); ROLLBACK TO s; RELEASE s; SAVEPOINT t";
    db.databases.migrate(&Migrations::none().script(31, "nested", nested)).await.unwrap();
}

/// PostgreSQL checks deferred constraints at the commit.
mod on_postgres {
    use super::*;

    on_every_database! {
        only postgres:
        an_error_at_the_commit_names_its_migration,
        a_script_of_postgres_that_ends_the_transaction_is_not_recorded,
    }

    async fn an_error_at_the_commit_names_its_migration(db: &TestDatabase) {
        let script = "CREATE TABLE deferred (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED); \
                      INSERT INTO deferred VALUES (1), (1)";
        let scripts = Migrations::none().script(10, "list", LIST).script(11, "twice", script);
        let error = db.databases.migrate(&scripts).await.unwrap_err();
        let names =
            matches!(&error, MigrationError::Failed { version: 11, name, .. } if name == "twice");
        assert!(names, "{error:?}");
        assert_eq!(applied(db).await.last().map(|(_, version, _)| *version), Some(10));
    }

    async fn a_script_of_postgres_that_ends_the_transaction_is_not_recorded(db: &TestDatabase) {
        let scripts = [
            "COMMIT",
            "ROLLBACK",
            "CREATE TABLE a (n integer); ROLLBACK AND CHAIN",
            "CREATE TABLE b (n integer); COMMIT AND CHAIN",
            "BEGIN; CREATE TABLE c (n integer); COMMIT",
            "COMMIT; BEGIN; CREATE TABLE d (n integer)",
        ];
        ends_the_transaction(db, &scripts).await;
        let nested = "BEGIN; SAVEPOINT s; CREATE TABLE e (n integer); ROLLBACK TO s; SAVEPOINT t";
        db.databases.migrate(&Migrations::none().script(31, "nested", nested)).await.unwrap();
    }
}

/// SQLite has no roles.
mod on_servers {
    use super::*;

    on_every_database! {
        only postgres and mysql and mariadb:
        a_role_that_may_not_create_anything_migrates_if_nothing_is_left_to_do,
    }

    async fn a_role_that_may_not_create_anything_migrates_if_nothing_is_left_to_do(
        db: &TestDatabase,
    ) {
        let database = db.url.rsplit('/').next().unwrap().split('?').next().unwrap();
        let reader = format!("r{}", &Uuid::now_v7().simple().to_string()[1..]);
        let statements = if db.dialect == Dialect::Postgres {
            vec![
                format!("CREATE ROLE {reader} LOGIN PASSWORD 'secret'"),
                format!("GRANT USAGE ON SCHEMA eventlog TO {reader}"),
                format!("GRANT SELECT ON ALL TABLES IN SCHEMA eventlog TO {reader}"),
            ]
        } else {
            // An anonymous user of the host `localhost` would take precedence over `%`.
            let users = ["%", "localhost"].map(|host| {
                let eventlog = db.config().eventlog;
                format!(
                    "CREATE USER '{reader}'@'{host}' IDENTIFIED BY 'secret'; \
                     GRANT SELECT ON {database}.* TO '{reader}'@'{host}'; \
                     GRANT SELECT ON {eventlog}.* TO '{reader}'@'{host}'"
                )
            });
            users.to_vec()
        };
        for statement in statements {
            db.execute(&statement).await;
        }
        let (scheme, login) = db.url.split_once("://").unwrap();
        let server = login.rsplit('@').next().unwrap();
        let config = DataSourceConfig::new(format!("{scheme}://{reader}:secret@{server}"));
        let config = config.eventlog(db.config().eventlog);
        let databases = Databases::connect(&config.into()).await.unwrap();
        databases.migrate(&migrations()).await.unwrap();
        // With something to do, the database refuses.
        let more = migrations().script(3, "list", LIST);
        let error = databases.migrate(&more).await.unwrap_err();
        assert!(matches!(error, MigrationError::Database(_)), "{error}");
        assert_eq!(applied(db).await.last().map(|(_, version, _)| *version), Some(2));
    }
}
