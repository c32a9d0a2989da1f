//! What only the providers in MySQL and MariaDB have to show: how many connections they take,
//! and what becomes of their leases with sessions and servers that end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, Lease, LockKey, LockProvider, LossCause, lock_key};
use ekbatan_testkit::{Dropped, MariaDbServer, MySqlServer, Proxy, drop_at_poll};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

use crate::providers::{CONNECTIONS, Kind, LONG, mysql_database, on_mysql};

mod refusals;
mod sessions;

macro_rules! by_every_strategy {
    ($($test:ident),* $(,)?) => {
        by_every_strategy!(only mysql_lease MySqlLease: $($test),*);
        by_every_strategy!(only mysql_session MySqlSession: $($test),*);
        by_every_strategy!(only mariadb_lease MariaDbLease: $($test),*);
        by_every_strategy!(only mariadb_session MariaDbSession: $($test),*);
    };
    (only $module:ident $kind:ident: $($test:ident),*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test(crate::providers::Kind::$kind).await;
                }
            )*
        }
    };
}

by_every_strategy! {
    connections_do_not_grow_with_holders_and_waiters,
    tokens_grow_over_a_crash_of_the_server,
    two_processes_share_a_key_fairly,
    a_caller_dropped_at_any_moment_leaves_no_lock,
    many_processes_can_start_at_once,
    acquiring_and_releasing_take_one_round_trip_each,
    tokens_grow_although_their_counter_is_lost,
    similar_key_names_are_separate_locks,
}

/// A connection of the test's own, to either server.
async fn client(url: &str) -> MySqlConnection {
    let (_, rest) = url.split_once(':').unwrap();
    MySqlConnection::connect(&format!("mysql:{rest}")).await.unwrap()
}

pub async fn number(url: &str, sql: &'static str) -> i64 {
    let mut connection = client(url).await;
    let number = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    number
}

/// The connections of others to this database.
const OTHERS: &str = "SELECT COUNT(*) FROM information_schema.processlist \
     WHERE db = DATABASE() AND id <> CONNECTION_ID()";

/// What the server knows to be held.
pub fn held(kind: Kind) -> &'static str {
    match kind.is_session() {
        false => "SELECT COUNT(*) FROM lock_leases WHERE until > UTC_TIMESTAMP(6)",
        true => "SELECT COUNT(*) FROM lock_sessions WHERE IS_USED_LOCK(lock_name) IS NOT NULL",
    }
}

async fn connections_do_not_grow_with_holders_and_waiters(kind: Kind) {
    let url = mysql_database(kind).await;
    let locks = on_mysql(kind, &url).await;
    let most = if kind.is_session() { 1 } else { CONNECTIONS as i64 };
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
    for key in &keys {
        while locks.inspect(key).await.unwrap().is_none_or(|holder| holder.waiting_here < 10) {
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

/// A server of one's own, of either kind, that others could follow: what is written has to
/// be fit for its log.
enum Server {
    MySql(MySqlServer),
    MariaDb(MariaDbServer),
}

impl Server {
    async fn start(kind: Kind) -> Self {
        match kind.is_mariadb() {
            false => Self::MySql(MySqlServer::builder().binlog().start().await.unwrap()),
            true => Self::MariaDb(MariaDbServer::builder().binlog().start().await.unwrap()),
        }
    }

    async fn create_database(&self) -> String {
        match self {
            Self::MySql(server) => server.create_database().await.unwrap(),
            Self::MariaDb(server) => server.create_database().await.unwrap(),
        }
    }

    async fn kill(&self) {
        match self {
            Self::MySql(server) => server.kill().await.unwrap(),
            Self::MariaDb(server) => server.kill().await.unwrap(),
        }
    }

    async fn restart(&self) {
        match self {
            Self::MySql(server) => server.restart().await.unwrap(),
            Self::MariaDb(server) => server.restart().await.unwrap(),
        }
    }
}

async fn tokens_grow_over_a_crash_of_the_server(kind: Kind) {
    let server = Server::start(kind).await;
    let url = server.create_database().await;
    let locks = on_mysql(kind, &url).await;
    let key = LockKey::named("k");
    // A row survives the server, and stands until its time is over.
    let hold = if kind.is_session() { LONG } else { Duration::from_secs(2) };
    let mut last = 0;
    for _ in 0..2 {
        let lease = take_in_the_end(&locks, &key).await;
        assert!(lease.release().await);
        let lease = locks.acquire(&key, hold).await.unwrap();
        assert!(lease.token() > last);
        last = lease.token();
        server.kill().await;
        if kind.is_session() {
            let cause = lease.lost().await;
            assert!(matches!(cause, LossCause::SessionGone(_)), "{cause:?}");
        }
        server.restart().await;
        drop(lease);
        let again = take_in_the_end(&locks, &key).await;
        assert!(again.token() > last, "{} after {last}", again.token());
        last = again.token();
        assert!(again.release().await);
    }
}

async fn two_processes_share_a_key_fairly(kind: Kind) {
    const ROUNDS: usize = 600;
    let url = mysql_database(kind).await;
    let total = Arc::new(AtomicUsize::new(0));
    let inside = Arc::new(AtomicUsize::new(0));
    // Rounds count from when both have begun: nobody gives way to who has yet to ask.
    let begun = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let processes = [on_mysql(kind, &url).await, on_mysql(kind, &url).await];
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
    let url = mysql_database(kind).await;
    let locks = on_mysql(kind, &url).await;
    let mut finished = 0;
    for round in 0..200 {
        let key = lock_key!("key", round as i64);
        if round < 20 {
            let taking = drop_at_poll(round, locks.acquire(&key, LONG));
            finished += usize::from(matches!(taking.await, Dropped::Finished(_)));
            continue;
        }
        let moment = Duration::from_micros(fastrand::u64(0..4_000));
        let taking = tokio::time::timeout(moment, locks.acquire(&key, LONG));
        finished += usize::from(taking.await.is_ok());
    }
    assert!(finished > 0);
    while number(&url, held(kind)).await > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn many_processes_can_start_at_once(kind: Kind) {
    let url = mysql_database(kind).await;
    let mut beginning = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let url = url.clone();
        beginning.spawn(async move {
            let locks = on_mysql(kind, &url).await;
            let mut leases = Vec::new();
            for n in 0..20 {
                let key = lock_key!("key", n as i64);
                leases.extend(locks.try_acquire(&key, Duration::ZERO, LONG).await.unwrap());
            }
            (locks, leases)
        });
    }
    let held: Vec<_> = beginning.join_all().await;
    assert_eq!(held.iter().map(|(_, leases)| leases.len()).sum::<usize>(), 20);
}

async fn acquiring_and_releasing_take_one_round_trip_each(kind: Kind) {
    let url = mysql_database(kind).await;
    let address = url.split(['@', '/']).find(|part| part.starts_with("127.")).unwrap();
    let proxy = Proxy::start(address).await.unwrap();
    let locks = on_mysql(kind, &proxy.url_for(&url)).await;
    // Whatever is to be connected is connected now.
    let key = LockKey::named("k");
    assert!(locks.acquire(&key, LONG).await.unwrap().release().await);
    let mut least = u64::MAX;
    for _ in 0..10 {
        proxy.reset();
        let lease = locks.acquire(&key, LONG).await.unwrap();
        assert!(lease.release().await);
        least = least.min(proxy.round_trips());
    }
    assert_eq!(least, 2);
    proxy.cut();
    proxy.restore();
    assert!(take_in_the_end(&locks, &key).await.release().await);
}

async fn tokens_grow_although_their_counter_is_lost(kind: Kind) {
    let url = mysql_database(kind).await;
    let key = LockKey::named("k");
    let mut last = 0;
    for _ in 0..3 {
        let locks = on_mysql(kind, &url).await;
        let token = locks.acquire(&key, LONG).await.unwrap().token();
        assert!(token > last, "{kind:?}: {token} after {last}");
        last = token;
        locks.close().await;
        let lose = format!("DROP TABLE {}", table(kind));
        sqlx::raw_sql(AssertSqlSafe(lose)).execute(&mut client(&url).await).await.unwrap();
    }
}

fn table(kind: Kind) -> &'static str {
    if kind.is_session() { "lock_sessions" } else { "lock_leases" }
}

async fn similar_key_names_are_separate_locks(kind: Kind) {
    let locks = on_mysql(kind, &mysql_database(kind).await).await;
    let names = ["k", "K", "k ", "ḱ", "k'", "k\\", "k\"", "k;--", "k\0", "ｋ", "ß", "ss", "🔑"];
    let mut leases = Vec::new();
    for name in names {
        let lease = locks.try_acquire(&LockKey::named(name), Duration::ZERO, LONG).await;
        leases.push(lease.unwrap().unwrap_or_else(|| panic!("{name:?} is free")));
    }
    for name in names {
        let key = LockKey::named(name);
        assert!(locks.try_acquire(&key, Duration::ZERO, LONG).await.unwrap().is_none());
        assert!(locks.inspect(&key).await.unwrap().is_some());
    }
}
