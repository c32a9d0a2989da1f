//! Callers that wait for long, and callers that ask again: they keep their places, and look seldom.

use std::time::{Duration, Instant};

use ekbatan::lock::{Attempt, FailureKind, GrantRequest, HBaseBackend, LockBackend};
use ekbatan_testkit::HBaseServer;
use futures_util::FutureExt;
use tokio::time::timeout;
use uuid::Uuid;

use super::{backend, request, taken};
use crate::providers::LONG;

/// How long a place lasts without a sign of life.
const PLACE: Duration = Duration::from_secs(3);

/// How long a key that was passed on is kept for a caller that does not confirm that.
const CONFIRM: Duration = Duration::from_secs(1);

/// How often a test may be repeated because the machine stood still.
const ROUNDS: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_asks_again_is_not_overtaken() {
    for listens in [false, true] {
        let mut round = 0;
        let is_first = loop {
            if let Some(is_first) = is_first_after_asking_again(listens).await {
                break is_first;
            }
            round += 1;
            assert!(round < ROUNDS, "the machine stands still all the time");
        };
        assert!(is_first, "one that came later has the key; listens: {listens}");
    }
}

/// A caller asks again and again for longer than a place lasts, and then another one comes. Returns
/// whether the first one is the next, or `None` if the machine stood still for so long that it may have
/// lost its place.
async fn is_first_after_asking_again(listens: bool) -> Option<bool> {
    let namespace = Uuid::new_v4().to_string();
    let (holder, one, other) =
        (backend(&namespace).await, backend(&namespace).await, backend(&namespace).await);
    let (first, newcomer) = (request(LONG).waiting(), request(LONG).waiting());
    let held = taken(&holder, "k", LONG).await;
    // Before the last sign of life was sent.
    let (begun, mut last) = (Instant::now(), Instant::now());
    while begun.elapsed() < 2 * PLACE {
        let asked = Instant::now();
        assert_eq!(one.try_grant("k", &first).await.unwrap(), Attempt::Queued);
        if last.elapsed() >= PLACE {
            return None;
        }
        last = asked;
        if listens {
            let handed_over = timeout(PLACE / 6, one.handed_over("k", first.owner)).await;
            assert!(handed_over.is_err(), "it is held: {handed_over:?}");
        } else {
            tokio::time::sleep(PLACE / 6).await;
        }
    }
    assert_eq!(other.try_grant("k", &newcomer).await.unwrap(), Attempt::Queued);
    let passed_on = Instant::now();
    assert!(holder.release("k", &held).await.unwrap().ours);
    let answer = one.try_grant("k", &first).await.unwrap();
    if last.elapsed() >= PLACE || passed_on.elapsed() >= CONFIRM {
        return None;
    }
    Some(matches!(answer, Attempt::Granted(grant) if grant.owner == first.owner))
}

/// A key that is held by another process, and a request that waits for it.
async fn queued(behind: &HBaseBackend, request: &GrantRequest) {
    assert!(behind.handed_over("k", request.owner).now_or_never().is_none());
    assert_eq!(behind.try_grant("k", request).await.unwrap(), Attempt::Queued);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_waits_for_long_looks_seldom() {
    let namespace = Uuid::new_v4().to_string();
    let (proxy, url) = HBaseServer::shared().await.unwrap().behind_proxy().await.unwrap();
    let behind = HBaseBackend::connect(&url, &namespace).await.unwrap();
    let _held = taken(&backend(&namespace).await, "k", LONG).await;
    let waiting = request(LONG).waiting();
    queued(&behind, &waiting).await;
    let mut handed_over = behind.handed_over("k", waiting.owner);
    assert!(timeout(PLACE, &mut handed_over).await.is_err());
    proxy.reset();
    let begun = Instant::now();
    assert!(timeout(3 * PLACE, &mut handed_over).await.is_err());
    // One every 300 ms, which also tells that it lives.
    let most = u64::try_from(begun.elapsed().as_millis()).unwrap() / 300 + 5;
    let looks = proxy.round_trips();
    assert!((3..=most).contains(&looks), "{looks} looks, {most} at most");
}

/// Another owner would begin at the end of the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_asks_a_silent_server_again_keeps_its_place() {
    let namespace = Uuid::new_v4().to_string();
    let (proxy, url) = HBaseServer::shared().await.unwrap().behind_proxy().await.unwrap();
    let behind = HBaseBackend::connect(&url, &namespace).await.unwrap();
    let _held = taken(&backend(&namespace).await, "k", 10 * LONG).await;
    let waiting = request(LONG).waiting();
    queued(&behind, &waiting).await;
    let handed_over = behind.handed_over("k", waiting.owner);
    proxy.stall();
    assert_eq!(handed_over.await, None);
    let still_waits = async || {
        let error = behind.try_grant("k", &waiting).await.unwrap_err();
        assert_eq!(error.kind(), FailureKind::Unavailable, "{error}");
    };
    // Meanwhile the last look at the key fails, and what was seen of it is forgotten.
    still_waits().await;
    still_waits().await;
    proxy.resume();
    // Finds the region again.
    taken(&behind, "other", LONG).await;
    proxy.stall();
    still_waits().await;
    proxy.resume();
    assert_eq!(behind.try_grant("k", &waiting).await.unwrap(), Attempt::Queued);
}

/// The end of such a term is after all times that a clock can name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_passed_on_for_the_longest_term() {
    let namespace = Uuid::new_v4().to_string();
    let (holder, other) = (backend(&namespace).await, backend(&namespace).await);
    let held = taken(&holder, "k", LONG).await;
    let waiting = request(Duration::MAX).waiting();
    queued(&other, &waiting).await;
    let next = other.handed_over("k", waiting.owner);
    assert!(holder.release("k", &held).await.unwrap().ours);
    let handed_over = next.await.expect("it is the next");
    let year = Duration::from_secs(365 * 86_400);
    assert!(handed_over.until > tokio::time::Instant::now() + year);
    assert!(holder.inspect("k").await.unwrap().unwrap().remaining.unwrap() > year);
    assert!(other.release("k", &handed_over.grant).await.unwrap().ours);
}
