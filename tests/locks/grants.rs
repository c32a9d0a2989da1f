//! The backends alone: a release ends only the grant that it names, tokens grow whatever the clock
//! does, and a provider counts a grant from its request.

use std::time::Duration;

use async_trait::async_trait;
use ekbatan::lock::{
    Attempt, BackendError, Grant, GrantRequest, Holder, KeyedLockProvider, LockBackend, LockKey,
    LockProvider, MySqlLocks, PostgresLocks, ProcessBackend, Released, SqliteLocks,
};
use ekbatan_lock_etcd::EtcdBackend;
use ekbatan_lock_redis::RedisBackend;
use ekbatan_testkit::{EtcdServer, FerretDbServer, RedisServer, TempSqlite};
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};
use uuid::Uuid;

use crate::providers::{CONNECTIONS, Kind, LONG};
use crate::sql::place::Place;
use crate::stores;

on_providers! {
    |kind| &crate::grants::TestBackend::start(kind).await;
    [
        process, redis, etcd, sqlite, postgres_lease, postgres_session,
        mysql_lease, mysql_session, mariadb_lease, mariadb_session; stores
    ]
    a_late_release_spares_the_next_grant,
    tokens_grow_within_a_millisecond,
}
const KEY: &str = "k";

/// By how many milliseconds tokens are ahead of the clock.
const AHEAD: i64 = 1_000_000_000;

struct TestBackend {
    backend: Box<dyn LockBackend>,
    data: Data,
}

/// Where the tokens are stored.
enum Data {
    /// Out of reach, or not counted by a clock.
    Elsewhere,
    Redis {
        url: String,
        namespace: String,
    },
    FerretDb {
        namespace: String,
    },
    File(TempSqlite),
    Server(Place),
}

impl TestBackend {
    async fn start(kind: Kind) -> Self {
        match kind {
            Kind::Process => {
                Self { backend: Box::new(ProcessBackend::new()), data: Data::Elsewhere }
            }
            Kind::Redis => {
                let url = RedisServer::shared().await.unwrap().url();
                let namespace = Uuid::new_v4().to_string();
                let backend = RedisBackend::connect(&url, &namespace).await.unwrap();
                Self { backend: Box::new(backend), data: Data::Redis { url, namespace } }
            }
            Kind::Etcd => {
                let url = EtcdServer::shared().await.unwrap().url();
                let namespace = Uuid::new_v4().to_string();
                let backend = EtcdBackend::connect(&url, &namespace).await.unwrap();
                Self { backend: Box::new(backend), data: Data::Elsewhere }
            }
            Kind::MongoDb | Kind::Aerospike | Kind::HBase => {
                let (url, namespace) = (stores::url(kind).await, Uuid::new_v4().to_string());
                let backend = stores::backend(kind, &url, &namespace).await;
                let is_mongodb = kind == Kind::MongoDb;
                let data = if is_mongodb { Data::FerretDb { namespace } } else { Data::Elsewhere };
                Self { backend, data }
            }
            Kind::Sqlite => {
                let file = TempSqlite::new().unwrap();
                let locks = SqliteLocks::connect(&file.url()).await.unwrap();
                let backend = locks.leases().await.unwrap();
                Self { backend: Box::new(backend), data: Data::File(file) }
            }
            kind => {
                let place = Place::shared(kind).await;
                Self { backend: on_server(&place).await, data: Data::Server(place) }
            }
        }
    }

    async fn granted(&self) -> Grant {
        match self.tried().await {
            Attempt::Granted(grant) => grant,
            busy => panic!("the key is not free: {busy:?}"),
        }
    }

    async fn tried(&self) -> Attempt {
        let request = GrantRequest::new(Uuid::new_v4(), "a test", LONG);
        self.backend.try_grant(KEY, &request).await.unwrap()
    }

    async fn release(&self, grant: &Grant) -> bool {
        self.backend.release(KEY, grant).await.unwrap().ours
    }

    /// Moves the last token far ahead of the clock.
    async fn set_the_clock_back(&self) {
        match &self.data {
            Data::Elsewhere => unreachable!("its tokens cannot be moved"),
            Data::Redis { url, namespace } => {
                let mut connection = crate::redis::connection(url).await;
                let fence = format!("{namespace}:fence:{{{KEY}}}");
                let mut command = ::redis::cmd("INCRBY");
                let () = command.arg(fence).arg(AHEAD).query_async(&mut connection).await.unwrap();
            }
            Data::FerretDb { namespace } => {
                let server = FerretDbServer::shared().await.unwrap();
                let ahead = format!(r#"{{"$inc": {{"token": {{"$numberLong": "{AHEAD}"}}}}}}"#);
                let command = format!(
                    r#"{{"update": "{namespace}", "updates": [{{"q": {{}}, "u": {ahead}, "multi": true}}]}}"#
                );
                server.update("test", &command).await.unwrap();
            }
            Data::File(file) => {
                let sql = format!("UPDATE eventlog_lock_leases SET token = token + {AHEAD}");
                let mut connection = SqliteConnection::connect(&file.url()).await.unwrap();
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
                connection.close().await.unwrap();
            }
            Data::Server(place) => {
                let sql = match place.kind {
                    Kind::PostgresSession => format!(
                        "SELECT setval('eventlog.lock_tokens', last_value + {AHEAD}) \
                         FROM eventlog.lock_tokens"
                    ),
                    Kind::PostgresLease => {
                        format!("UPDATE eventlog.lock_leases SET token = token + {AHEAD}")
                    }
                    kind if kind.is_session() => {
                        format!("UPDATE lock_sessions SET token = token + {AHEAD}")
                    }
                    _ => format!("UPDATE lock_leases SET token = token + {AHEAD}"),
                };
                place.execute(&sql).await;
            }
        }
    }
}

pub async fn on_server(place: &Place) -> Box<dyn LockBackend> {
    let url = &place.url;
    let postgres = async || PostgresLocks::connect(url, CONNECTIONS).await.unwrap();
    let mysql = async || {
        let database = url.rsplit('/').next().unwrap_or_default();
        MySqlLocks::connect(url, CONNECTIONS).await.unwrap().eventlog(database)
    };
    match place.kind {
        Kind::PostgresLease => Box::new(postgres().await.leases().await.unwrap()),
        Kind::PostgresSession => Box::new(postgres().await.session().await.unwrap()),
        kind if kind.is_session() => Box::new(mysql().await.session().await.unwrap()),
        _ => Box::new(mysql().await.leases().await.unwrap()),
    }
}

async fn a_late_release_spares_the_next_grant(t: &TestBackend) {
    let first = t.granted().await;
    assert!(t.release(&first).await);
    let next = t.granted().await;
    // Also if the answer to the first grant was lost, so that only its owner is known.
    for late in [first, Grant { token: 0, ..first }] {
        assert!(!t.release(&late).await, "the grant is over");
        assert!(t.backend.inspect(KEY).await.unwrap().is_some(), "the next grant is not");
        let tried = t.tried().await;
        assert!(matches!(tried, Attempt::Busy(_)), "a second holder: {tried:?}");
    }
    assert!(t.release(&next).await, "nobody else has released it");
}

async fn tokens_grow_within_a_millisecond(t: &TestBackend) {
    let mut last = 0;
    for _ in 0..200 {
        let grant = t.granted().await;
        assert!(grant.token > last, "{} after {last}", grant.token);
        last = grant.token;
        assert!(t.release(&grant).await);
    }
}

mod clock {
    use super::*;

    on_providers! {
        |kind| &crate::grants::TestBackend::start(kind).await;
        // The process keeps its last token in memory: its unit test sets the clock back.
        [
            redis, sqlite, postgres_lease, postgres_session,
            mysql_lease, mysql_session, mariadb_lease, mariadb_session,
        ]
        tokens_grow_although_the_clock_went_back,
    }

    #[cfg(feature = "mongodb")]
    on_providers! {
        |kind| &crate::grants::TestBackend::start(kind).await;
        [mongodb]
        tokens_grow_although_the_clock_went_back,
    }

    async fn tokens_grow_although_the_clock_went_back(t: &TestBackend) {
        let mut last = 0;
        for round in 0..3 {
            let grant = t.granted().await;
            let ahead = if round == 0 { 0 } else { AHEAD };
            assert!(grant.token > last + ahead, "{} after {last} + {ahead}", grant.token);
            last = grant.token;
            assert!(t.release(&grant).await);
            t.set_the_clock_back().await;
        }
        t.backend.close().await;
    }
}

/// Grants keys of this process, and answers late.
struct LateAnswers(ProcessBackend);

/// Longer than what a provider adds to the term that its holder asked for.
const LATE: Duration = Duration::from_millis(500);

#[async_trait]
impl LockBackend for LateAnswers {
    fn name(&self) -> &'static str {
        "late"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let attempt = self.0.try_grant(key, request).await;
        tokio::time::sleep(LATE).await;
        attempt
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        self.0.extend(key, grant, term).await
    }

    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        self.0.set_term(key, grant, term).await
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        self.0.release(key, grant).await
    }

    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        self.0.inspect(key).await
    }

    async fn force_release(
        &self,
        key: &str,
        seen: &Grant,
        why: &str,
    ) -> Result<bool, BackendError> {
        self.0.force_release(key, seen, why).await
    }
}

/// The server counts the term from when it granted the key, and the lease must not outlive it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_answer_does_not_prolong_the_lease() {
    let locks = LockProvider::new(LateAnswers(ProcessBackend::new()), "test");
    let key = LockKey::named(KEY);
    let lease = locks.acquire(&key, LONG).await.unwrap();
    let at_the_server = locks.inspect(&key).await.unwrap().unwrap().remaining.unwrap();
    let here = lease.remaining();
    assert!(here <= at_the_server, "{here:?} here, {at_the_server:?} at the server");
}
