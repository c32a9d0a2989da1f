//! The clock of a server is set while processes wait for its leases.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockKey, LockProvider};
use support::until;

use crate::hand_over::is_confirmed_too_late;
use crate::providers::{Kind, LONG};
use crate::sql::place::Place;

/// Processes that look for the keys that they wait for.
const LOOKS: &str = "SELECT coalesce(max(extract(epoch FROM query_start) * 1000000), 0)::bigint \
     FROM pg_stat_activity WHERE datname = current_database() \
     AND query LIKE '%lease_look_without_waiting%' AND pid <> pg_backend_pid()";

/// Sets the clock by which the functions of leases count, and leaves that of the server.
async fn set_clock(place: &Place, hours: i32) {
    place
        .execute(&format!(
            "CREATE OR REPLACE FUNCTION eventlog.lease_micros(at timestamptz) RETURNS bigint \
             LANGUAGE sql IMMUTABLE AS $$ \
             SELECT (extract(epoch FROM at + interval '{hours} hours') * 1000000)::bigint $$"
        ))
        .await;
}

async fn looked_twice(place: &Place) {
    for _ in 0..2 {
        let last = place.number(LOOKS).await;
        until("the process looks", async || place.number(LOOKS).await > last).await;
    }
}

/// The holder of a grant that was handed over believes in it for as long as the server does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_handed_over_lasts_as_long_as_asked_on_postgres() {
    let place = Place::shared(Kind::PostgresLease).await;
    let (a, b) = (place.process().await, place.process().await);
    const LISTENERS: &str = "SELECT count(*) FROM pg_stat_activity \
         WHERE datname = current_database() AND query LIKE 'LISTEN ekbatan_lock_%'";
    until("both listen", async || place.number(LISTENERS).await == 2).await;
    let key = LockKey::named("k");
    for hours in 1.. {
        let held = a.acquire(&key, LONG).await.unwrap();
        let waiter = {
            let (b, key): (LockProvider, LockKey) = (b.clone(), key.clone());
            tokio::spawn(async move { b.acquire(&key, LONG).await.unwrap() })
        };
        looked_twice(&place).await;
        set_clock(&place, hours).await;
        // The waiter was registered before, until a time that is over by the new clock.
        looked_twice(&place).await;
        looked_twice(&place).await;
        assert!(held.release().await);
        let lease = tokio::time::timeout(LONG, waiter).await.expect("it gets the key").unwrap();
        // Longer than the short term that the server gives a waiter to confirm its grant.
        tokio::time::sleep(Duration::from_secs(4)).await;
        if is_confirmed_too_late(&lease) && hours < 5 {
            continue;
        }
        lease.check().unwrap();
        assert!(
            a.try_acquire(&key, Duration::ZERO, LONG).await.unwrap().is_none(),
            "it has one holder"
        );
        assert!(lease.release().await);
        return;
    }
}
