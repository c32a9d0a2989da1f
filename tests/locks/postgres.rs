//! What only the providers in PostgreSQL have to show: how many connections they take, and
//! what becomes of their leases with sessions and servers that end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::lock::{
    KeyedLockProvider, Lease, LockKey, LockProvider, LockScope, LossCause, PostgresLocks,
    PostgresLocksError, lock_key,
};
use ekbatan_testkit::{Dropped, PostgresServer, Proxy, drop_at_poll};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::providers::{CONNECTIONS, Kind, LONG, on_postgres};

macro_rules! by_both_strategies {
    ($($test:ident),* $(,)?) => {
        mod lease {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test(crate::providers::Kind::PostgresLease).await;
                }
            )*
        }
        mod session {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test(crate::providers::Kind::PostgresSession).await;
                }
            )*
        }
    };
}

by_both_strategies! {
    connections_do_not_grow_with_holders_and_waiters,
    tokens_grow_over_a_crash_of_the_server,
    two_processes_share_a_key_fairly,
    a_caller_dropped_at_any_moment_leaves_no_lock,
    many_processes_can_start_at_once,
    a_failed_try_is_notified_of_the_release,
    acquiring_and_releasing_take_one_round_trip_each,
}

async fn database() -> String {
    PostgresServer::shared().await.unwrap().create_database().await.unwrap()
}

pub async fn number(url: &str, sql: &'static str) -> i64 {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let number = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    number
}

/// The connections of others to this database.
const OTHERS: &str = "SELECT count(*) FROM pg_stat_activity \
     WHERE datname = current_database() AND pid <> pg_backend_pid()";

/// What the server knows to be held.
pub fn held(kind: Kind) -> &'static str {
    match kind {
        Kind::PostgresSession => {
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = \
             (SELECT oid FROM pg_database WHERE datname = current_database())"
        }
        _ => "SELECT count(*) FROM eventlog.lock_leases WHERE until > clock_timestamp()",
    }
}

async fn connections_do_not_grow_with_holders_and_waiters(kind: Kind) {
    let url = database().await;
    let locks = on_postgres(kind, &url).await;
    let most = match kind {
        Kind::PostgresSession => 1,
        _ => CONNECTIONS as i64 + 1,
    };
    let keys: Vec<LockKey> = (0..1_000).map(|n| lock_key!("key", n as i64)).collect();
    let mut leases = tokio::task::JoinSet::new();
    for key in keys.clone() {
        let locks = locks.clone();
        leases.spawn(async move { locks.acquire(&key, LONG * 10).await.unwrap() });
    }
    let leases: Vec<Lease> = leases.join_all().await;
    assert_eq!(number(&url, held(kind)).await, 1_000);
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..10_000 {
        let (locks, key) = (locks.clone(), keys[n % keys.len()].clone());
        waiters.spawn(async move { locks.acquire(&key, LONG).await.unwrap().release().await });
    }
    let all = |waiting: usize| waiting == 10;
    for key in &keys {
        while !locks.inspect(key).await.unwrap().is_some_and(|holder| all(holder.waiting_here)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let connections = number(&url, OTHERS).await;
    assert!(connections <= most, "{connections} connections");
    drop(leases);
    while let Some(served) = waiters.join_next().await {
        assert!(served.unwrap());
    }
    let connections = number(&url, OTHERS).await;
    assert!(connections <= most, "{connections} connections");
    while number(&url, held(kind)).await > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Takes a key from a server that may not be back yet.
async fn take_in_the_end(locks: &LockProvider, key: &LockKey) -> Lease {
    loop {
        match locks.acquire(key, LONG).await {
            Ok(lease) => return lease,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn tokens_grow_over_a_crash_of_the_server(kind: Kind) {
    let server = PostgresServer::start().await.unwrap();
    let url = server.create_database().await.unwrap();
    let locks = on_postgres(kind, &url).await;
    let key = LockKey::named("k");
    // A row may survive the server, and stands until its time is over.
    let hold = match kind {
        Kind::PostgresSession => LONG,
        _ => Duration::from_secs(2),
    };
    let mut last = 0;
    for _ in 0..3 {
        let lease = locks.acquire(&key, hold).await.unwrap();
        assert!(lease.token() > last);
        last = lease.token();
        server.kill().await.unwrap();
        if kind == Kind::PostgresSession {
            let cause = lease.lost().await;
            assert!(matches!(cause, LossCause::SessionGone(_)), "{cause:?}");
        }
        server.restart().await.unwrap();
        drop(lease);
        let again = take_in_the_end(&locks, &key).await;
        assert!(again.token() > last, "{} after {last}", again.token());
        last = again.token();
        assert!(again.release().await);
    }
}

async fn two_processes_share_a_key_fairly(kind: Kind) {
    const ROUNDS: usize = 600;
    let url = database().await;
    let total = Arc::new(AtomicUsize::new(0));
    let inside = Arc::new(AtomicUsize::new(0));
    // Rounds count from when both have begun: nobody gives way to who has yet to ask.
    let begun = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let processes = [on_postgres(kind, &url).await, on_postgres(kind, &url).await];
    let mut tasks = tokio::task::JoinSet::new();
    for (process, locks) in processes.into_iter().enumerate() {
        for _ in 0..3 {
            let (locks, total, inside) = (locks.clone(), total.clone(), inside.clone());
            let begun = begun.clone();
            tasks.spawn(async move {
                let mut served = 0;
                while total.load(Ordering::SeqCst) < ROUNDS {
                    let lease = locks.acquire(&LockKey::named("k"), LONG).await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                    begun[process].store(1, Ordering::SeqCst);
                    if begun.iter().all(|begun| begun.load(Ordering::SeqCst) == 1) {
                        total.fetch_add(1, Ordering::SeqCst);
                        served += 1;
                    }
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    lease.release().await;
                }
                (process, served)
            });
        }
    }
    let mut served = [0; 2];
    for (process, count) in tasks.join_all().await {
        served[process] += count;
    }
    assert!(served.iter().all(|count| *count >= ROUNDS / 10), "{served:?}");
}

async fn a_caller_dropped_at_any_moment_leaves_no_lock(kind: Kind) {
    let url = database().await;
    let locks = on_postgres(kind, &url).await;
    let mut finished = 0;
    for round in 0..200 {
        let key = lock_key!("key", round as i64);
        if round < 20 {
            let taking = drop_at_poll(round, locks.acquire(&key, LONG));
            finished += usize::from(matches!(taking.await, Dropped::Finished(_)));
            continue;
        }
        let moment = Duration::from_micros(fastrand::u64(0..2_000));
        let taking = tokio::time::timeout(moment, locks.acquire(&key, LONG));
        finished += usize::from(taking.await.is_ok());
    }
    assert!(finished > 0);
    while number(&url, held(kind)).await > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn many_processes_can_start_at_once(kind: Kind) {
    let url = database().await;
    let mut beginning = tokio::task::JoinSet::new();
    for n in 0..8 {
        let url = url.clone();
        beginning.spawn(async move {
            let locks = on_postgres(kind, &url).await;
            let lease = locks.acquire(&lock_key!("key", n as i64), LONG).await.unwrap();
            lease.release().await
        });
    }
    assert!(beginning.join_all().await.into_iter().all(|released| released));
}

async fn a_failed_try_is_notified_of_the_release(kind: Kind) {
    let url = database().await;
    let (a, b) = (on_postgres(kind, &url).await, on_postgres(kind, &url).await);
    let key = LockKey::named("k");
    let mut told = sqlx::postgres::PgListener::connect(&url).await.unwrap();
    told.listen("ekbatan_lock").await.unwrap();
    // Of a key that nobody wants, nothing is said.
    let unwanted = LockKey::named("unwanted");
    assert!(a.acquire(&unwanted, LONG).await.unwrap().release().await);
    let held = a.acquire(&key, LONG).await.unwrap();
    assert!(b.try_acquire(&key, Duration::ZERO, LONG).await.unwrap().is_none());
    assert!(held.release().await);
    let hint = told.recv().await.unwrap();
    assert_eq!(hint.payload(), "DC#test#k");
    assert!(b.try_acquire(&key, Duration::ZERO, LONG).await.unwrap().is_some());
}

async fn acquiring_and_releasing_take_one_round_trip_each(kind: Kind) {
    let url = database().await;
    let address = url.split(['@', '/']).find(|part| part.starts_with("127.")).unwrap();
    let proxy = Proxy::start(address).await.unwrap();
    let locks = on_postgres(kind, &proxy.url_for(&url)).await;
    // Whatever is to be connected is connected now.
    let key = LockKey::named("k");
    assert!(locks.acquire(&key, LONG).await.unwrap().release().await);
    let listening = match kind {
        Kind::PostgresSession => 1,
        _ => 2,
    };
    while number(&url, OTHERS).await < listening {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut least = u64::MAX;
    for _ in 0..10 {
        proxy.reset();
        let lease = locks.acquire(&key, LONG).await.unwrap();
        assert!(lease.release().await);
        least = least.min(proxy.round_trips());
    }
    assert_eq!(least, 2);
    // Whoever has it enters it again without asking.
    LockScope::run(async {
        let outer = locks.acquire(&key, LONG).await.unwrap();
        proxy.reset();
        let inner = locks.acquire(&key, LONG).await.unwrap();
        assert!(inner.release().await && outer.is_held());
        assert_eq!(proxy.round_trips(), 0);
        assert!(outer.release().await);
    })
    .await;
    proxy.cut();
    proxy.restore();
    assert!(take_in_the_end(&locks, &key).await.release().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_session_loses_its_leases_and_no_others() {
    let url = database().await;
    let locks = on_postgres(Kind::PostgresSession, &url).await;
    let (a, b) = (LockKey::named("a"), LockKey::named("b"));
    for _ in 0..3 {
        let lost = [locks.acquire(&a, LONG).await.unwrap(), locks.acquire(&b, LONG).await.unwrap()];
        let pids = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE granted \
             AND locktype = 'advisory' AND objid = (SELECT objid FROM pg_locks WHERE \
             locktype = 'advisory' AND database = (SELECT oid FROM pg_database \
             WHERE datname = current_database()) LIMIT 1)";
        assert!(number(&url, pids).await > 0);
        for lease in &lost {
            let cause = lease.lost().await;
            assert!(
                matches!(&cause, LossCause::SessionGone(why) if why.contains("terminating")),
                "{cause:?}"
            );
            assert!(!lease.is_held() && !lease.release().await);
        }
        let again = take_in_the_end(&locks, &a).await;
        assert!(again.token() > lost[0].token());
        assert!(again.release().await);
        assert!(take_in_the_end(&locks, &b).await.release().await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_does_not_end_the_lock_of_another_session() {
    let url = database().await;
    let theirs = on_postgres(Kind::PostgresSession, &url).await;
    let ours = on_postgres(Kind::PostgresSession, &url).await;
    let key = LockKey::named("k");
    let lease = theirs.acquire(&key, LONG).await.unwrap();
    let refused = ours.force_release(&key, "it hangs").await.unwrap_err().to_string();
    assert!(refused.contains("pg_terminate_backend("), "{refused}");
    let holder = ours.inspect(&key).await.unwrap().unwrap();
    assert!(holder.holder.contains(&std::process::id().to_string()), "{holder:?}");
    assert_eq!((holder.held, holder.remaining), (None, None));
    assert!(lease.is_held() && lease.release().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_although_their_counter_is_lost() {
    let url = database().await;
    for (kind, lose) in [
        (Kind::PostgresLease, "DROP TABLE eventlog.lock_leases"),
        (
            Kind::PostgresSession,
            "DROP SEQUENCE eventlog.lock_tokens; DROP TABLE eventlog.lock_wanted",
        ),
        // A sequence that stood still while others counted on.
        (Kind::PostgresSession, "SELECT setval('eventlog.lock_tokens', 17)"),
    ] {
        let key = LockKey::named("k");
        let before = on_postgres(kind, &url).await;
        let last = before.acquire(&key, LONG).await.unwrap().token();
        before.close().await;
        let mut connection = PgConnection::connect(&url).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(lose)).execute(&mut connection).await.unwrap();
        let locks = on_postgres(kind, &url).await;
        let token = locks.acquire(&key, LONG).await.unwrap().token();
        assert!(token > last, "{kind:?}: {token} after {last}");
        locks.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_rejected() {
    let primary = PostgresServer::start().await.unwrap();
    let replica = primary.start_replica().await.unwrap();
    let refused = PostgresLocks::connect(&replica.url("postgres"), 1).await.err().unwrap();
    assert!(matches!(refused, PostgresLocksError::Unsafe { .. }), "{refused:?}");
    assert!(refused.to_string().contains("address of the primary"), "{refused}");
}
