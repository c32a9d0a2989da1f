//! What only the locks on MySQL and MariaDB have to show.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockKey};

use crate::providers::{Kind, LONG};
use crate::sql::place::Place;

mod defaults;
mod locked_rows;
mod refusals;
mod sessions;

on_providers! {
    |kind| kind;
    [mysql_lease, mysql_session, mariadb_lease, mariadb_session]
    tokens_grow_although_their_counter_is_lost,
    similar_key_names_are_separate_locks,
}

async fn tokens_grow_although_their_counter_is_lost(kind: Kind) {
    let place = Place::shared(kind).await;
    let key = LockKey::named("k");
    let mut last = 0;
    for _ in 0..3 {
        let locks = place.process().await;
        let token = locks.acquire(&key, LONG).await.unwrap().token();
        assert!(token > last, "{kind:?}: {token} after {last}");
        last = token;
        locks.close().await;
        let table = if kind.is_session() { "lock_sessions" } else { "lock_leases" };
        place.execute(&format!("DROP TABLE {table}")).await;
    }
}

async fn similar_key_names_are_separate_locks(kind: Kind) {
    let locks = Place::shared(kind).await.process().await;
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
