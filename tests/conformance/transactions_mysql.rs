//! Sessions and transactions on MySQL and MariaDB: what a session is set to, what a read
//! leaves behind, and commits that are none.

use ekbatan::config::DataSourceConfig;
use ekbatan::db::{
    DbError, DbErrorKind, Isolation, MigrationError, PoolStatus, Route, Transaction,
    TransactionError, TransactionOptions,
};
use ekbatan::prelude::*;
use sqlx::AssertSqlSafe;
use support::things::{migrations, quiet, thing};
use support::{Dialect, PlainConnection, TestDatabase};

use crate::actions::{Refused, run};

on_every_database! {
    only mysql and mariadb:
    sessions_are_set_whatever_the_servers_defaults,
    settings_do_not_outlive_their_transaction,
    reads_and_commits_leave_no_lock_on_the_table,
    a_failed_rollback_closes_the_connection,
    a_connection_lost_in_the_commit_is_closed_and_the_commit_unknown,
    a_deadlock_that_was_swallowed_does_not_look_like_a_commit,
    a_statement_that_commits_by_itself_does_not_go_unnoticed,
    nothing_is_written_after_the_transaction_ended_under_its_user,
    the_isolation_is_the_one_that_was_chosen,
    single_and_batch_updates_keep_microseconds_in_every_session_time_zone,
    a_raw_connection_comes_back_as_a_new_session,
    a_server_of_the_other_kind_is_refused,
    a_user_without_the_right_to_the_eventlog_is_told_which_to_grant,
    statements_that_run_too_long_are_told_apart,
}

async fn ask(tx: &Transaction, sql: &str) -> String {
    let mut connection = tx.mysql().await.unwrap();
    sqlx::query_scalar(AssertSqlSafe(format!("SELECT CAST({sql} AS CHAR)")))
        .fetch_one(connection.connection().unwrap())
        .await
        .unwrap()
}

async fn tell(tx: &Transaction, sql: &str) -> Result<(), sqlx::Error> {
    let mut connection = tx.mysql().await.unwrap();
    let connection = connection.connection().unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
}

const ME: &str = "CONNECTION_ID()";

/// Ends a session and waits until it is gone.
async fn terminate(db: &TestDatabase, session: &str) {
    db.execute(&format!("KILL {session}")).await;
    let left = format!("FROM information_schema.processlist WHERE id = {session}");
    while db.select(&["id"], &left).await != Vec::<Vec<_>>::new() {}
}

fn status(db: &TestDatabase) -> PoolStatus {
    db.databases.pool_status(Route::Primary)
}

async fn sessions_are_set_whatever_the_servers_defaults(db: &TestDatabase) {
    let isolation = match db.dialect {
        Dialect::MySql => "@@transaction_isolation",
        _ => "@@tx_isolation",
    };
    let asked = async |tx: Transaction| {
        let mut answers = Vec::new();
        for sql in ["@@time_zone", "@@character_set_client", "@@sql_mode", isolation, "1 | 2"] {
            answers.push(ask(&tx, sql).await);
        }
        Ok::<_, Refused>(answers)
    };
    let answers = db.databases.transactions().in_transaction(asked).await.unwrap();
    assert_eq!(answers[..2], ["+00:00", "utf8mb4"]);
    assert!(answers[2].contains("STRICT_ALL_TABLES") && !answers[2].contains("ANSI_QUOTES"));
    assert_eq!(answers[3], "READ-COMMITTED");
}

async fn settings_do_not_outlive_their_transaction(db: &TestDatabase) {
    for commits in [true, false] {
        let manager = db.databases.transactions();
        let answer = manager.in_transaction(async |tx| {
            tell(&tx, "SET time_zone = '-05:00', sql_mode = '', @mine = 7").await.unwrap();
            if commits { Ok(()) } else { Err(Refused) }
        });
        assert_eq!(answer.await.is_ok(), commits);
        let found = manager.in_transaction(async |tx| {
            let mine = ask(&tx, "COALESCE(@mine, 'none')").await;
            Ok::<_, Refused>((mine, ask(&tx, "@@time_zone").await))
        });
        assert_eq!(found.await.unwrap(), ("none".to_owned(), "+00:00".to_owned()));
    }
}

/// A session that kept its transaction open would keep its lock, and an ALTER waiting.
async fn reads_and_commits_leave_no_lock_on_the_table(db: &TestDatabase) {
    let executor = db.executor().await;
    let stored = run(&executor, |ctx| Ok(ctx.plan().add(quiet(thing("a"))))).await.unwrap();
    let stale = stored.clone();
    db.things().update(stored.apply(|thing| thing.big = 1)).await.unwrap();
    db.things().update(stale.apply(|_| ())).await.unwrap_err();
    db.things().find_all().await.unwrap();
    db.execute("SET lock_wait_timeout = 5; ALTER TABLE things ADD COLUMN extra int").await;
}

async fn a_failed_rollback_closes_the_connection(db: &TestDatabase) {
    let mut old = String::new();
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            old = ask(&tx, ME).await;
            db.things().within(&tx).add(quiet(thing("a"))).await.unwrap();
            terminate(db, &old).await;
            Err::<(), _>(Refused)
        })
        .await;
    assert!(matches!(answer, Err(TransactionError::Inner(Refused))), "{answer:?}");
    assert_eq!((status(db).size, status(db).holders), (0, vec![]));
    assert_eq!(db.count("things").await, 0);
}

async fn a_connection_lost_in_the_commit_is_closed_and_the_commit_unknown(db: &TestDatabase) {
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            let me = ask(&tx, ME).await;
            db.things().within(&tx).add(quiet(thing("a"))).await.unwrap();
            terminate(db, &me).await;
            Ok::<_, Refused>(())
        })
        .await;
    assert!(matches!(answer, Err(TransactionError::CommitUnknown(_))), "{answer:?}");
    assert_eq!((status(db).size, status(db).holders), (0, vec![]));
    assert_eq!(db.count("things").await, 0);
}

/// A deadlock rolls the whole transaction back: what is written after it would commit alone.
async fn a_deadlock_that_was_swallowed_does_not_look_like_a_commit(db: &TestDatabase) {
    let stored = db.things().add_all(["a", "b"].map(|label| quiet(thing(label)))).await.unwrap();
    let [first, second] = [stored[0].clone(), stored[1].clone()];
    let mut neighbour = PlainConnection::connect(&db.url).await;
    let ballast = format!(
        "CREATE TABLE ballast (n int); BEGIN; INSERT INTO ballast VALUES (1){}; \
         SELECT 1 FROM things WHERE id = '{}' FOR UPDATE",
        ", (1)".repeat(500),
        second.id
    );
    neighbour.execute(&ballast).await;
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            let things = db.things().within(&tx);
            things.update(first.clone().apply(|thing| thing.big = 1)).await.unwrap();
            let lock = format!("SELECT 1 FROM things WHERE id = '{}' FOR UPDATE", first.id);
            let crossing = neighbour.execute(&lock);
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
    neighbour.execute("ROLLBACK").await;
    assert_eq!((db.count("things").await, status(db).idle), (2, 1));
    assert_eq!(db.things().get(first.id).await.unwrap(), first);
}

async fn a_statement_that_commits_by_itself_does_not_go_unnoticed(db: &TestDatabase) {
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            db.things().within(&tx).add(quiet(thing("a"))).await.unwrap();
            tell(&tx, "CREATE TABLE other (n int)").await.unwrap();
            Ok::<_, Refused>(())
        })
        .await;
    let error = answer.unwrap_err().to_string();
    assert!(error.contains("had ended before its commit"), "{error}");
}

/// What is written after the transaction is over would commit by itself.
async fn nothing_is_written_after_the_transaction_ended_under_its_user(db: &TestDatabase) {
    let answer = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            tell(&tx, "ROLLBACK").await.unwrap();
            db.things().within(&tx).add(quiet(thing("a"))).await.unwrap_err();
            Ok::<_, Refused>(())
        })
        .await;
    assert!(matches!(answer, Err(TransactionError::Database(_))), "{answer:?}");
    assert_eq!(db.count("things").await, 0);
}

/// Whether a second look within a transaction sees what a neighbour committed meanwhile.
async fn the_isolation_is_the_one_that_was_chosen(db: &TestDatabase) {
    assert!(db.databases.capabilities().isolation_levels);
    for (n, (isolation, sees)) in [
        (None, true),
        (Some(Isolation::ReadCommitted), true),
        (Some(Isolation::RepeatableRead), false),
    ]
    .into_iter()
    .enumerate()
    {
        let options = TransactionOptions { isolation, ..TransactionOptions::default() };
        let manager = db.databases.transactions();
        let work = async |tx: Transaction| {
            let things = db.things().within(&tx);
            let before = things.count().await.unwrap();
            db.things().add(quiet(thing(&n.to_string()))).await.unwrap();
            Ok::<_, Refused>(things.count().await.unwrap() > before)
        };
        assert_eq!(
            manager.in_transaction_with(options, work).await.unwrap(),
            sees,
            "{isolation:?}"
        );
    }
}

async fn single_and_batch_updates_keep_microseconds_in_every_session_time_zone(db: &TestDatabase) {
    let things = ["a", "b", "c"].map(|label| quiet(thing(label)));
    let stored = db.things().add_all(things).await.unwrap();
    let at = DateTime::from_timestamp_micros(1_720_000_000_123_457).unwrap();
    let mut changed: Vec<_> = stored
        .into_iter()
        .map(|thing| {
            thing.apply(|thing| {
                thing.at = at;
                thing.seen_at = Some(at);
            })
        })
        .collect();
    let expected = db
        .databases
        .transactions()
        .in_transaction(async |tx| {
            tell(&tx, "SET time_zone = '-05:00'").await.unwrap();
            let things = db.things().within(&tx);
            let single = things.update(changed.remove(0)).await.unwrap();
            let mut all = things.update_all(changed).await.unwrap();
            all.push(single);
            for thing in &all {
                assert_eq!(things.get(thing.id).await.unwrap(), *thing);
            }
            Ok::<_, DbError>(all)
        })
        .await
        .unwrap();
    for thing in expected {
        assert_eq!((thing.at, thing.seen_at), (at, Some(at)));
        assert_eq!(db.things().get(thing.id).await.unwrap(), thing);
    }
}

async fn a_raw_connection_comes_back_as_a_new_session(db: &TestDatabase) {
    let mut raw = db.databases.mysql().await.unwrap();
    let sql =
        "BEGIN; INSERT INTO zones (id, name, state, version) VALUES (UUID(), 'z', 'ACTIVE', 1)";
    sqlx::raw_sql(sql).execute(raw.connection().unwrap()).await.unwrap();
    raw.release().await.unwrap();
    assert_eq!((status(db).size, status(db).idle), (1, 1));
    assert_eq!(db.count("zones").await, 0);
    assert_eq!(db.things().find_all().await.unwrap(), []);
}

async fn a_server_of_the_other_kind_is_refused(db: &TestDatabase) {
    let (mine, other) = match db.dialect {
        Dialect::MySql => ("mysql:", "mariadb:"),
        _ => ("mariadb:", "mysql:"),
    };
    let url = db.url.replacen(mine, other, 1);
    let error = Databases::open(&url).await.err().unwrap().to_string();
    assert!(error.contains(&format!("write the url with `{mine}//`")), "{error}");
}

async fn a_user_without_the_right_to_the_eventlog_is_told_which_to_grant(db: &TestDatabase) {
    let database = db.url.rsplit('/').next().unwrap();
    let name = &database[database.len().saturating_sub(32)..]; // what a user's name may have
    // A server may know an anonymous user of its own host, who would come first.
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
    let url = format!("{}://{name}:secret@{server}", db.databases.capabilities().name);
    let config = |eventlog: &str| DataSourceConfig::new(&url).eventlog(eventlog);
    let denied = Databases::connect(&config("forbidden`s").into()).await.unwrap();
    match denied.migrate(&migrations()).await.unwrap_err() {
        MigrationError::Database(error) => {
            assert_eq!(error.kind(), DbErrorKind::Denied);
            assert!(error.to_string().contains("GRANT ALL ON `forbidden``s`.* TO"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // With the one right that was named, everything works: no routine, no process list.
    let eventlog = db.config().eventlog;
    grant(&eventlog).await;
    let allowed = Databases::connect(&config(&eventlog).into()).await.unwrap();
    allowed.migrate(&migrations()).await.unwrap();
    let executor = support::things::THINGS.executor_on(&allowed).await;
    run(&executor, |ctx| Ok(ctx.plan().add(quiet(thing("a"))))).await.unwrap();
    db.execute(&format!("DROP USER '{name}'@'%', '{name}'@'localhost'")).await;
}

async fn statements_that_run_too_long_are_told_apart(db: &TestDatabase) {
    let config = db.config().statement_timeout(std::time::Duration::from_millis(200));
    let databases = Databases::connect(&config.into()).await.unwrap();
    let stored = db.things().add_all((0..60).map(|n| quiet(thing(&n.to_string())))).await.unwrap();
    // The view multiplies the rows until the reading of it takes longer than it may.
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
