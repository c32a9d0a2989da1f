//! What happens to named locks when their session ends.

use std::error::Error;
use std::time::Duration;

use ekbatan::config::DataSourceConfig;
use ekbatan::lock::{KeyedLockProvider, LockKey, LockProvider, LossCause, MySqlLocks, lock_key};
use support::until;

use crate::providers::{Kind, LONG, on_mysql};
use crate::sql::place::{Place, acquire_eventually};

on_providers! {
    |kind| kind;
    [mysql_session, mariadb_session]
    an_ended_session_loses_its_leases_and_no_others,
    other_processes_can_inspect_the_holder,
    force_ends_the_session_of_another_process,
    force_without_the_privilege_says_how_to_end_the_session,
    concurrent_requests_share_round_trips,
    both_sides_give_up_a_silent_connection,
}

/// The session that holds the locks.
const HOLDER: &str = "SELECT CAST(MAX(IS_USED_LOCK(lock_name)) AS SIGNED) FROM lock_sessions";

async fn an_ended_session_loses_its_leases_and_no_others(kind: Kind) {
    let place = Place::shared(kind).await;
    let (locks, others) = (place.process().await, place.process().await);
    let (a, b) = (LockKey::named("a"), LockKey::named("b"));
    for round in 0..3 {
        let lost = [locks.acquire(&a, LONG).await.unwrap(), locks.acquire(&b, LONG).await.unwrap()];
        let session = place.number(HOLDER).await;
        let theirs = others.acquire(&lock_key!("theirs", round), LONG).await.unwrap();
        place.execute(&format!("KILL {session}")).await;
        for lease in &lost {
            let cause = lease.lost().await;
            assert!(matches!(cause, LossCause::SessionGone(_)), "{cause:?}");
            assert!(!lease.is_held() && !lease.release().await);
        }
        // Every process can acquire the key.
        let again = acquire_eventually(&others, &a).await;
        assert!(again.token() > lost[0].token());
        assert!(again.release().await && theirs.release().await);
        assert!(acquire_eventually(&locks, &b).await.release().await);
    }
    assert_eq!(place.held().await, 0);
}

async fn other_processes_can_inspect_the_holder(kind: Kind) {
    let place = Place::shared(kind).await;
    let (ours, theirs) = (place.process().await, place.process().await);
    let key = LockKey::named("k");
    let lease = theirs.acquire(&key, LONG).await.unwrap();
    let holder = ours.inspect(&key).await.unwrap().unwrap();
    assert!(holder.holder.contains(&std::process::id().to_string()), "{holder:?}");
    assert_eq!(holder.token, lease.token() >> 16);
    assert!(holder.held.is_some() && holder.remaining.is_none(), "{holder:?}");
    assert!(lease.release().await);
    assert_eq!(ours.inspect(&key).await.unwrap(), None);
}

async fn force_ends_the_session_of_another_process(kind: Kind) {
    let place = Place::shared(kind).await;
    let (ours, theirs) = (place.process().await, place.process().await);
    let key = LockKey::named("k");
    assert!(!ours.force_release(&key, "nothing is there").await.unwrap());
    let lease = theirs.acquire(&key, LONG).await.unwrap();
    assert!(ours.force_release(&key, "it hangs").await.unwrap());
    let successor = ours.try_acquire(&key, LONG, LONG).await.unwrap().unwrap();
    assert!(successor.token() > lease.token());
    assert!(matches!(lease.lost().await, LossCause::SessionGone(_)));
    assert!(successor.is_held() && successor.release().await);
    assert!(acquire_eventually(&theirs, &key).await.release().await);
}

async fn force_without_the_privilege_says_how_to_end_the_session(kind: Kind) {
    let place = Place::shared(kind).await;
    let url = &place.url;
    let (address, database) = url.rsplit_once('/').unwrap();
    let user = format!("u{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
    let script = format!("CREATE USER {user}; GRANT ALL ON {database}.* TO {user}");
    place.execute(&script).await;
    let (scheme, host) = (url.split(':').next().unwrap(), address.rsplit('@').next().unwrap());
    let theirs = place.process().await;
    let ours = on_mysql(kind, &format!("{scheme}://{user}@{host}/{database}")).await;
    let key = LockKey::named("k");
    let lease = theirs.acquire(&key, LONG).await.unwrap();
    let refused = ours.force_release(&key, "it hangs").await.unwrap_err().to_string();
    let session = place.number(HOLDER).await;
    assert!(refused.contains(&format!("KILL {session}")), "{refused}");
    assert!(lease.is_held() && lease.release().await);
}

async fn concurrent_requests_share_round_trips(kind: Kind) {
    let place = Place::shared(kind).await;
    let proxy = place.proxy().await;
    let locks = place.process_through(&proxy).await;
    // Long enough for all requests to wait behind the first one.
    proxy.set_delay(Duration::from_millis(200));
    proxy.reset();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..100 {
        let locks = locks.clone();
        tasks.spawn(async move { locks.acquire(&lock_key!("key", n), LONG).await.unwrap() });
    }
    let leases = tasks.join_all().await;
    let trips = proxy.round_trips();
    assert!(trips < 50, "{trips} trips for 100 keys");
    assert_eq!(place.held().await, 100);
    drop(leases);
    place.none_held().await;
}

async fn both_sides_give_up_a_silent_connection(kind: Kind) {
    let place = Place::shared(kind).await;
    let proxy = place.proxy().await;
    // It gives up after this time, and the server after twice that.
    let url = proxy.url_for(&place.url);
    let impatient = DataSourceConfig::new(&url).read_timeout(Duration::from_secs(3));
    // Patient, so that it creates the table on a slow machine too.
    let others = place.process().await;
    let mut opened = None;
    until("the impatient session opens", async || {
        opened = session(&impatient).await.inspect_err(|error| println!("{error}")).ok();
        opened.is_some()
    })
    .await;
    let locks = opened.unwrap();
    let key = LockKey::named("k");
    let lease = locks.acquire(&key, LONG * 10).await.unwrap();
    proxy.stall();
    let cause = lease.lost().await;
    assert!(
        matches!(&cause, LossCause::SessionGone(why) if why.contains("no answer")),
        "{cause:?}"
    );
    // The server ends the silent session by itself.
    let successor = others.acquire(&key, LONG).await.unwrap();
    assert!(successor.token() > lease.token());
    proxy.cut();
    proxy.restore();
    proxy.resume();
    assert!(successor.release().await);
    assert!(acquire_eventually(&locks, &key).await.release().await);
}

async fn session(config: &DataSourceConfig) -> Result<LockProvider, Box<dyn Error>> {
    let server = MySqlLocks::open(config).await?;
    let session = server.eventlog(config.url.rsplit('/').next().unwrap()).session().await?;
    Ok(LockProvider::new(session, "test"))
}
