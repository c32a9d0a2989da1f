//! Handlers that may begin only so many runs in a time.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ekbatan::events::HandlerOptions;
use futures_util::FutureExt;
use support::until;

use crate::scene::{Ledger, Mail, Scene};

on_every_database! {
    a_rate_spreads_the_runs_of_a_handler,
    a_rate_delays_no_other_handler_and_no_end,
}

on_every_database! {
    on_sqlite_only:
    after_an_idle_time_no_more_runs_begin_than_the_rate_says,
}

const EVENTS: usize = 12;
const PAUSE: Duration = Duration::from_millis(100);

/// A handler that notes when its runs begin.
fn noting() -> (Mail, Arc<Mutex<Vec<Instant>>>) {
    let begun: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let noted = begun.clone();
    let mail = Mail::new(move |_, _| {
        noted.lock().unwrap().push(Instant::now());
        async { Ok(()) }.boxed()
    });
    (mail, begun)
}

async fn a_rate_spreads_the_runs_of_a_handler(scene: &Scene) {
    let (mail, begun) = noting();
    let slow = HandlerOptions::unordered().rate(10, PAUSE * 10);
    let _node = scene.node().handler_with(mail, slow).start().await.unwrap();
    let before = Instant::now();
    for _ in 0..EVENTS {
        scene.open_wallet().await;
    }
    scene.until_handled("mail.send").await;
    let begun = begun.lock().unwrap();
    assert_eq!(begun.len(), EVENTS);
    // A run that is late by at most 10 ms lets the next one begin in time.
    let least = PAUSE * (EVENTS as u32 - 1) - Duration::from_millis(11);
    let took = begun[EVENTS - 1] - before;
    assert!(took >= least, "{EVENTS} runs began within {took:?}");
}

async fn a_rate_delays_no_other_handler_and_no_end(scene: &Scene) {
    let (mail, begun) = noting();
    let slow = HandlerOptions::unordered().rate(1, Duration::from_secs(3_600));
    let node = scene.node().handler_with(mail, slow).handler(Ledger::posting());
    let node = node.start().await.unwrap();
    for _ in 0..EVENTS {
        scene.open_wallet().await;
    }
    scene.until_posted(EVENTS as u64).await;
    until("the first mail is sent", async || begun.lock().unwrap().len() == 1).await;
    // What waits for the rate is left to other nodes.
    node.drain(Duration::from_secs(3_600)).await;
    assert_eq!(begun.lock().unwrap().len(), 1);
    let (mail, others) = noting();
    let _node = scene.node().handler(mail).start().await.unwrap();
    scene.until_handled("mail.send").await;
    assert_eq!(others.lock().unwrap().len(), EVENTS - 1);
}

async fn after_an_idle_time_no_more_runs_begin_than_the_rate_says(scene: &Scene) {
    let pause = Duration::from_millis(10);
    let (mail, begun) = noting();
    let slow = HandlerOptions::unordered().rate(1, pause);
    let _node = scene.node().handler_with(mail, slow).start().await.unwrap();
    for round in 1..=20 {
        let before = Instant::now();
        tokio::join!(scene.open_wallet(), scene.open_wallet());
        scene.until_handled("mail.send").await;
        let second = begun.lock().unwrap()[2 * round - 1] - before;
        assert!(second >= pause, "the second run began after {second:?}, in round {round}");
        // So long nothing waits.
        tokio::time::sleep(pause * 2).await;
    }
}
