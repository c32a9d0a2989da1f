//! The two hazards of HBase as a store of locks, first by hand, which shows that they are there, and
//! then with the locks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ekbatan::lock::{Attempt, LockBackend};
use ekbatan_testkit::{HBaseRows, HBaseServer};
use uuid::Uuid;

use super::{backend, request, taken};
use crate::providers::LONG;

/// Enough for a take and a release to fall into one millisecond, also on a slow machine.
const ROUNDS: usize = 400;

/// A table for requests by hand, over two connections.
async fn by_hand() -> [HBaseRows; 2] {
    let server = HBaseServer::shared().await.unwrap();
    let table = format!("by_hand_{}", Uuid::new_v4().simple());
    server.create_table(&table, &[], &[("VERSIONS", "1")]).await.unwrap();
    let begun = Instant::now();
    loop {
        let why = match server.rows(&table).await {
            Ok(mut rows) => match rows.get("r").await {
                Ok(_) => return [rows, server.rows(&table).await.unwrap()],
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        assert!(begun.elapsed() < LONG, "{why}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A deletion hides what is written in the same millisecond: a take is confirmed, and nothing is
/// there. Written at once by two connections, so that the two meet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_by_a_deletion_hides_the_next_take() {
    let [mut holder, mut next] = by_hand().await;
    assert!(holder.put_if("r", "holder", &[], (b"the first", None)).await.unwrap());
    let mut is_hidden = false;
    // Until it has happened: how often depends on the machine.
    for round in 0..100 * ROUNDS {
        let owner = round.to_string().into_bytes();
        let taking = async {
            // The key is free from the deletion on.
            while !next.put_if("r", "holder", &[], (&owner, None)).await.unwrap() {}
        };
        let (deleted, ()) = tokio::join!(holder.delete("r", "holder"), taking);
        deleted.unwrap();
        is_hidden = holder.get("r").await.unwrap().iter().all(|(_, value, _)| *value != owner);
        if is_hidden {
            break;
        }
    }
    assert!(is_hidden, "this version has no such hazard; the release could be a deletion");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_take_is_hidden_by_the_release_before_it() {
    let namespace = Uuid::new_v4().to_string();
    let (one, other) = (backend(&namespace).await, backend(&namespace).await);
    let mut per_millisecond = BTreeMap::<i64, usize>::new();
    for round in 0..ROUNDS {
        let by = if round % 2 == 0 { &one } else { &other };
        let grant = taken(by, "k", LONG).await;
        *per_millisecond.entry(grant.token).or_default() += 1;
        let seen = other.inspect("k").await.unwrap().map(|holder| holder.grant());
        assert_eq!(seen, Some(grant), "a grant that was confirmed is there");
        assert!(by.release("k", &grant).await.unwrap().ours);
        assert_eq!(one.inspect("k").await.unwrap(), None);
    }
    assert_eq!(per_millisecond.len(), ROUNDS, "no token comes twice");
}

/// A cell with a long term comes back when a younger one with a short term is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shorter_term_brings_the_older_cell_back() {
    let [mut rows, _] = by_hand().await;
    assert!(rows.put_if("r", "holder", &[], (b"long", Some(600_000))).await.unwrap());
    assert!(rows.put_if("r", "holder", b"long", (b"short", Some(50))).await.unwrap());
    let mut value = None;
    support::until("the term of the younger cell is over", async || {
        let cells = rows.get("r").await.unwrap();
        value = cells.first().map(|(_, value, _)| value.clone());
        value.as_deref() != Some(b"short")
    })
    .await;
    assert_eq!(value.as_deref(), Some(&b"long"[..]), "this version has no such hazard");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_term_that_was_made_shorter_ends_for_ever() {
    let namespace = Uuid::new_v4().to_string();
    let (one, other) = (backend(&namespace).await, backend(&namespace).await);
    // The longest term first, and each one shorter than the one before.
    let grant = taken(&one, "k", LONG * 100).await;
    for term in [LONG * 10, LONG, Duration::from_millis(200)] {
        assert!(one.extend("k", &grant, term).await.unwrap());
        let rest = other.inspect("k").await.unwrap().unwrap().remaining.unwrap();
        assert!(rest <= term, "{rest:?}");
    }
    let begun = Instant::now();
    let next = loop {
        assert!(begun.elapsed() < LONG, "the lease is back");
        match other.try_grant("k", &request(LONG)).await.unwrap() {
            Attempt::Granted(next) => break next,
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    // None of the older marks brings the first lease back, neither now nor after the release.
    for released in [false, true] {
        if released {
            assert!(other.release("k", &next).await.unwrap().ours);
        }
        assert!(!one.extend("k", &grant, LONG).await.unwrap());
        assert!(!one.release("k", &grant).await.unwrap().ours);
        let holder = one.inspect("k").await.unwrap().map(|holder| holder.grant());
        assert_eq!(holder, (!released).then_some(next));
    }
}
