//! What becomes of named locks with the session that has them.

use ekbatan::lock::{KeyedLockProvider, LockKey, LossCause, lock_key};
use sqlx::AssertSqlSafe;

use super::{client, held, number, take_in_the_end};
use crate::providers::{Kind, LONG, mysql_database, on_mysql};

macro_rules! on_both_servers {
    ($($test:ident),* $(,)?) => {
        on_both_servers!(only mysql MySqlSession: $($test),*);
        on_both_servers!(only mariadb MariaDbSession: $($test),*);
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

on_both_servers! {
    an_ended_session_loses_its_leases_and_no_others,
    other_processes_can_inspect_the_holder,
    force_ends_the_session_of_another_process,
    force_without_the_privilege_says_how_to_end_the_session,
    concurrent_requests_share_round_trips,
    both_sides_give_up_a_silent_connection,
}

/// The session that holds what is held.
const HOLDER: &str = "SELECT CAST(MAX(IS_USED_LOCK(lock_name)) AS SIGNED) FROM lock_sessions";

async fn an_ended_session_loses_its_leases_and_no_others(kind: Kind) {
    let url = mysql_database(kind).await;
    let (locks, others) = (on_mysql(kind, &url).await, on_mysql(kind, &url).await);
    let (a, b) = (LockKey::named("a"), LockKey::named("b"));
    for round in 0..3 {
        let lost = [locks.acquire(&a, LONG).await.unwrap(), locks.acquire(&b, LONG).await.unwrap()];
        let session = number(&url, HOLDER).await;
        let theirs = others.acquire(&lock_key!("theirs", round), LONG).await.unwrap();
        let kill = AssertSqlSafe(format!("KILL {session}"));
        sqlx::raw_sql(kill).execute(&mut client(&url).await).await.unwrap();
        for lease in &lost {
            let cause = lease.lost().await;
            assert!(matches!(cause, LossCause::SessionGone(_)), "{cause:?}");
            assert!(!lease.is_held() && !lease.release().await);
        }
        // The key is free for everybody.
        let again = take_in_the_end(&others, &a).await;
        assert!(again.token() > lost[0].token());
        assert!(again.release().await && theirs.release().await);
        assert!(take_in_the_end(&locks, &b).await.release().await);
    }
    assert_eq!(number(&url, held(kind)).await, 0);
}

async fn other_processes_can_inspect_the_holder(kind: Kind) {
    let url = mysql_database(kind).await;
    let (ours, theirs) = (on_mysql(kind, &url).await, on_mysql(kind, &url).await);
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
    let url = mysql_database(kind).await;
    let (ours, theirs) = (on_mysql(kind, &url).await, on_mysql(kind, &url).await);
    let key = LockKey::named("k");
    assert!(!ours.force_release(&key, "nothing is there").await.unwrap());
    let lease = theirs.acquire(&key, LONG).await.unwrap();
    assert!(ours.force_release(&key, "it hangs").await.unwrap());
    let successor = ours.try_acquire(&key, LONG, LONG).await.unwrap().unwrap();
    assert!(successor.token() > lease.token());
    assert!(matches!(lease.lost().await, LossCause::SessionGone(_)));
    assert!(successor.is_held() && successor.release().await);
    assert!(take_in_the_end(&theirs, &key).await.release().await);
}

async fn force_without_the_privilege_says_how_to_end_the_session(kind: Kind) {
    let url = mysql_database(kind).await;
    let (address, database) = url.rsplit_once('/').unwrap();
    let user = format!("u{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
    let script = format!("CREATE USER {user}; GRANT ALL ON {database}.* TO {user}");
    sqlx::raw_sql(AssertSqlSafe(script)).execute(&mut client(&url).await).await.unwrap();
    let (scheme, host) = (url.split(':').next().unwrap(), address.rsplit('@').next().unwrap());
    let theirs = on_mysql(kind, &url).await;
    let ours = on_mysql(kind, &format!("{scheme}://{user}@{host}/{database}")).await;
    let key = LockKey::named("k");
    let lease = theirs.acquire(&key, LONG).await.unwrap();
    let refused = ours.force_release(&key, "it hangs").await.unwrap_err().to_string();
    let session = number(&url, HOLDER).await;
    assert!(refused.contains(&format!("KILL {session}")), "{refused}");
    assert!(lease.is_held() && lease.release().await);
}

async fn concurrent_requests_share_round_trips(kind: Kind) {
    let url = mysql_database(kind).await;
    let address = url.split(['@', '/']).find(|part| part.starts_with("127.")).unwrap();
    let proxy = ekbatan_testkit::Proxy::start(address).await.unwrap();
    let locks = on_mysql(kind, &proxy.url_for(&url)).await;
    // Long enough for all of them to line up behind the first.
    proxy.set_delay(std::time::Duration::from_millis(200));
    proxy.reset();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..100 {
        let locks = locks.clone();
        tasks.spawn(async move { locks.acquire(&lock_key!("key", n), LONG).await.unwrap() });
    }
    let leases = tasks.join_all().await;
    let trips = proxy.round_trips();
    assert!(trips < 50, "{trips} trips for 100 keys");
    assert_eq!(number(&url, held(kind)).await, 100);
    drop(leases);
    while number(&url, held(kind)).await > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

async fn both_sides_give_up_a_silent_connection(kind: Kind) {
    let url = mysql_database(kind).await;
    let address = url.split(['@', '/']).find(|part| part.starts_with("127.")).unwrap();
    let proxy = ekbatan_testkit::Proxy::start(address).await.unwrap();
    let locks = on_mysql(kind, &proxy.url_for(&url)).await;
    let others = on_mysql(kind, &url).await;
    let key = LockKey::named("k");
    let lease = locks.acquire(&key, LONG * 10).await.unwrap();
    proxy.stall();
    let cause = lease.lost().await;
    assert!(
        matches!(&cause, LossCause::SessionGone(why) if why.contains("no answer")),
        "{cause:?}"
    );
    // The server, to which nobody said good-bye, ends the session by itself.
    let successor = others.acquire(&key, LONG).await.unwrap();
    assert!(successor.token() > lease.token());
    proxy.cut();
    proxy.restore();
    proxy.resume();
    assert!(successor.release().await);
    assert!(take_in_the_end(&locks, &key).await.release().await);
}
