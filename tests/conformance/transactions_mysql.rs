//! Sessions and transactions of MySQL and MariaDB only: settings, metadata locks, implicit
//! commits, rights.

use ekbatan::config::DataSourceConfig;
use ekbatan::db::{DbErrorKind, MigrationError, PoolStatus, Route, Transaction, TransactionError};
use ekbatan::prelude::*;
use support::things::{migrations, quiet, thing};
use support::{Dialect, PlainConnection, TestDatabase};

use crate::actions::{Refused, run};
use crate::sessions::{evaluate, execute};

on_every_database! {
    only mysql and mariadb:
    sessions_override_the_defaults_of_the_server,
    settings_do_not_outlive_their_transaction,
    reads_and_commits_leave_no_lock_on_the_table,
    a_swallowed_deadlock_prevents_the_commit,
    an_implicit_commit_is_detected,
    writes_after_a_raw_rollback_are_refused,
    a_released_raw_connection_is_reset,
    a_url_for_the_other_product_is_refused,
    a_missing_right_on_the_eventlog_is_named,
    a_statement_timeout_has_its_own_error_kind,
}

fn status(db: &TestDatabase) -> PoolStatus {
    db.databases.pool_status(Route::Primary)
}

async fn sessions_override_the_defaults_of_the_server(db: &TestDatabase) {
    let isolation = match db.dialect {
        Dialect::MySql => "@@transaction_isolation",
        _ => "@@tx_isolation",
    };
    let read_settings = async |tx: Transaction| {
        let mut settings = Vec::new();
        for sql in ["@@time_zone", "@@character_set_client", "@@sql_mode", isolation, "1 | 2"] {
            settings.push(evaluate(db, &tx, sql).await);
        }
        Ok::<_, Refused>(settings)
    };
    let settings = db.databases.transactions().in_transaction(read_settings).await.unwrap();
    assert_eq!(settings[..2], ["+00:00", "utf8mb4"]);
    assert!(settings[2].contains("STRICT_ALL_TABLES") && !settings[2].contains("ANSI_QUOTES"));
    assert_eq!(settings[3], "READ-COMMITTED");
}

async fn settings_do_not_outlive_their_transaction(db: &TestDatabase) {
    for commits in [true, false] {
        let manager = db.databases.transactions();
        let answer = manager.in_transaction(async |tx| {
            execute(db, &tx, "SET time_zone = '-05:00', sql_mode = '', @mine = 7").await.unwrap();
            if commits { Ok(()) } else { Err(Refused) }
        });
        assert_eq!(answer.await.is_ok(), commits);
        let found = manager.in_transaction(async |tx| {
            let mine = evaluate(db, &tx, "COALESCE(@mine, 'none')").await;
            Ok::<_, Refused>((mine, evaluate(db, &tx, "@@time_zone").await))
        });
        assert_eq!(found.await.unwrap(), ("none".to_owned(), "+00:00".to_owned()));
    }
}

/// A session with an open transaction keeps a metadata lock, for which ALTER TABLE waits.
async fn reads_and_commits_leave_no_lock_on_the_table(db: &TestDatabase) {
    let executor = db.executor().await;
    let stored = run(&executor, |ctx| Ok(ctx.plan().add(quiet(thing("a"))))).await.unwrap();
    let stale = stored.clone();
    db.things().update(stored.apply(|thing| thing.big = 1)).await.unwrap();
    db.things().update(stale.apply(|_| ())).await.unwrap_err();
    db.things().find_all().await.unwrap();
    db.execute("SET lock_wait_timeout = 60; ALTER TABLE things ADD COLUMN extra int").await;
}

/// A deadlock rolls back the whole transaction. A later write would commit by itself.
async fn a_swallowed_deadlock_prevents_the_commit(db: &TestDatabase) {
    let stored = db.things().add_all(["a", "b"].map(|label| quiet(thing(label)))).await.unwrap();
    let [first, second] = [stored[0].clone(), stored[1].clone()];
    let mut other = PlainConnection::connect(&db.url).await;
    let ballast = format!(
        "CREATE TABLE ballast (n int); BEGIN; INSERT INTO ballast VALUES (1){}; \
         SELECT 1 FROM things WHERE id = '{}' FOR UPDATE",
        ", (1)".repeat(500),
        second.id
    );
    other.execute(&ballast).await;
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            let things = db.things().within(&tx);
            things.update(first.clone().apply(|thing| thing.big = 1)).await.unwrap();
            let lock = format!("SELECT 1 FROM things WHERE id = '{}' FOR UPDATE", first.id);
            let crossing = other.execute(&lock);
            let waiting = things.update(second.clone().apply(|thing| thing.big = 2));
            let ((), waited) = tokio::join!(crossing, waiting);
            let error = waited.unwrap_err().to_string();
            assert!(error.contains("[1213]"), "{error}");
            let after = things.add(quiet(thing("c"))).await.unwrap_err().to_string();
            assert!(after.contains("rolled back"), "{after}");
            Ok::<_, Refused>(())
        })
        .await;
    assert!(matches!(answer, Err(TransactionError::Database(_))), "{answer:?}");
    other.execute("ROLLBACK").await;
    assert_eq!((db.count("things").await, status(db).idle), (2, 1));
    assert_eq!(db.things().get(first.id).await.unwrap(), first);
}

async fn an_implicit_commit_is_detected(db: &TestDatabase) {
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            db.things().within(&tx).add(quiet(thing("a"))).await.unwrap();
            execute(db, &tx, "CREATE TABLE other (n int)").await.unwrap();
            Ok::<_, Refused>(())
        })
        .await;
    let error = answer.unwrap_err().to_string();
    assert!(error.contains("had ended before its commit"), "{error}");
}

/// A write after the end of the transaction would commit by itself.
async fn writes_after_a_raw_rollback_are_refused(db: &TestDatabase) {
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            execute(db, &tx, "ROLLBACK").await.unwrap();
            db.things().within(&tx).add(quiet(thing("a"))).await.unwrap_err();
            Ok::<_, Refused>(())
        })
        .await;
    assert!(matches!(answer, Err(TransactionError::Database(_))), "{answer:?}");
    assert_eq!(db.count("things").await, 0);
}

async fn a_released_raw_connection_is_reset(db: &TestDatabase) {
    let mut raw = db.databases.mysql().await.unwrap();
    let sql =
        "BEGIN; INSERT INTO zones (id, name, state, version) VALUES (UUID(), 'z', 'ACTIVE', 1)";
    sqlx::raw_sql(sql).execute(raw.connection().unwrap()).await.unwrap();
    raw.release().await.unwrap();
    assert_eq!((status(db).size, status(db).idle), (1, 1));
    assert_eq!(db.count("zones").await, 0);
    assert_eq!(db.things().find_all().await.unwrap(), []);
}

async fn a_url_for_the_other_product_is_refused(db: &TestDatabase) {
    let (mine, other) = match db.dialect {
        Dialect::MySql => ("mysql:", "mariadb:"),
        _ => ("mariadb:", "mysql:"),
    };
    let url = db.url.replacen(mine, other, 1);
    let error = Databases::open(&url).await.err().unwrap().to_string();
    assert!(error.contains(&format!("write the url with `{mine}//`")), "{error}");
}

async fn a_missing_right_on_the_eventlog_is_named(db: &TestDatabase) {
    let database = db.url.rsplit('/').next().unwrap();
    let name = &database[database.len().saturating_sub(32)..]; // the maximum length of a user name
    // An anonymous user of the host `localhost` would take precedence over `%`.
    let hosts = ["%", "localhost"];
    let grant = async |database: &str| {
        for host in hosts {
            db.execute(&format!("GRANT ALL ON {database}.* TO '{name}'@'{host}'")).await;
        }
    };
    for host in hosts {
        db.execute(&format!("CREATE USER '{name}'@'{host}' IDENTIFIED BY 'secret'")).await;
    }
    grant(database).await;
    let server = db.url.split('@').nth(1).unwrap();
    let url = format!("{}://{name}:secret@{server}", db.databases.capabilities().dialect);
    let config = |eventlog: &str| DataSourceConfig::new(&url).eventlog(eventlog);
    let denied = Databases::connect(&config("forbidden`s").into()).await.unwrap();
    match denied.migrate(&migrations()).await.unwrap_err() {
        MigrationError::Database(error) => {
            assert_eq!(error.kind(), DbErrorKind::Denied);
            assert!(error.to_string().contains("GRANT ALL ON `forbidden``s`.* TO"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // The named right is sufficient.
    let eventlog = db.config().eventlog;
    grant(&eventlog).await;
    let allowed = Databases::connect(&config(&eventlog).into()).await.unwrap();
    allowed.migrate(&migrations()).await.unwrap();
    let executor = support::things::THINGS.executor_on(&allowed).await;
    run(&executor, |ctx| Ok(ctx.plan().add(quiet(thing("a"))))).await.unwrap();
    db.execute(&format!("DROP USER '{name}'@'%', '{name}'@'localhost'")).await;
}

async fn a_statement_timeout_has_its_own_error_kind(db: &TestDatabase) {
    let config = db.config().statement_timeout(std::time::Duration::from_secs(2));
    let databases = Databases::connect(&config.into()).await.unwrap();
    let stored = db.things().add_all((0..60).map(|n| quiet(thing(&n.to_string())))).await.unwrap();
    // The cross join takes far longer than the timeout.
    let product = (0..6).map(|n| format!("things t{n}"));
    db.execute(&format!(
        "CREATE VIEW slow AS SELECT t0.id, CONCAT(t1.label, t2.label, t3.label, t4.label, t5.label) AS name, \
         t0.state, t0.version FROM {}",
        product.collect::<Vec<_>>().join(", ")
    ))
    .await;
    #[derive(Debug, Clone, Entity)]
    #[entity(table = "slow", name = "Slow")]
    struct Slow {
        id: Id<Slow>,
        name: String,
        state: support::things::ThingState,
    }
    let error = databases.repository::<Slow>().count_where(Slow::NAME.eq("x")).await.unwrap_err();
    match error {
        ekbatan::repository::ReadError::Database(error) => {
            assert_eq!(error.kind(), DbErrorKind::StatementTimeout, "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(stored.len(), 60);
}
