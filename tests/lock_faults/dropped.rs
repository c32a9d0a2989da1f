//! Callers that are dropped at every point where they wait: for the lock, the read, the commit and
//! the release.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::lock::{LockKey, LockProvider};
use ekbatan::prelude::*;
use ekbatan_testkit::{Dropped, drop_at_poll};
use support::until;
use tokio::task::JoinSet;

use crate::history::Answer;
use crate::ledger::{Depositor, Ledger};
use crate::providers::Kind;
use crate::server::LockServer;
use crate::worker::{Record, finished, note};

on_every_provider_with_deposits! { dropped_callers_leave_nothing_and_break_no_order }
on_providers! {
    [process_and_postgres Process]
    dropped_callers_leave_nothing_and_break_no_order
}

const LONG: Duration = Duration::from_secs(60);
/// So long that no lease expires during the test.
const HOLD: Duration = Duration::from_secs(3_600);
const ACCOUNTS: usize = 2;
const TASKS: usize = 4;

async fn dropped_callers_leave_nothing_and_break_no_order(kind: Kind) {
    let (server, ledger) = (LockServer::shared(kind).await, Ledger::create().await);
    let record = Record::default();
    // Two providers that share nothing but the server, if there is one.
    let one = kind.connect(&server.url).await;
    let other = match kind {
        Kind::Process => one.clone(),
        _ => kind.connect(&server.url).await,
    };
    let depositor = |locks: &LockProvider| {
        let record = record.clone();
        let observe = Arc::new(move |observation| note(&record, observation));
        Depositor { ledger: ledger.clone(), locks: locks.clone(), observe }
    };
    let (drops, enough) = (Arc::new(AtomicUsize::new(0)), kind.rounds(80, 400));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let depositor = depositor([&one, &other][task % 2]);
        tasks.spawn(drop_at_every_poll(depositor, drops.clone(), enough));
    }
    let finishes: Vec<usize> = tasks.join_all().await;
    // The next callers are served.
    for account in 0..ACCOUNTS {
        for locks in [&one, &other] {
            let options = LockOptions::wait(LONG).hold(HOLD);
            let depositor = depositor(locks);
            let answer = depositor.deposit(&account.to_string(), options, true, None).await;
            assert_eq!(answer, Some(Answer::Committed));
            let key = LockKey::named(&account.to_string());
            until("the key is free", async || matches!(locks.inspect(&key).await, Ok(None))).await;
        }
    }
    one.close().await;
    other.close().await;
    let history = finished(&record, &ledger, &server).await;
    history.check().unwrap();
    let drops = drops.load(Ordering::SeqCst);
    println!("{kind:?}: {drops} dropped, {finishes:?} finished, {} commits", history.commits.len());
    assert!(drops >= enough && finishes.iter().all(|finishes| *finishes > 0));
}

/// Drops a deposit at its first poll, the next one at its second, and so on until one finishes; then
/// starts again. Returns the number of finished deposits.
async fn drop_at_every_poll(depositor: Depositor, drops: Arc<AtomicUsize>, enough: usize) -> usize {
    let mut finishes = 0;
    let mut poll = 0;
    while finishes == 0 || drops.load(Ordering::SeqCst) < enough {
        let account = (poll % ACCOUNTS).to_string();
        let options = LockOptions::wait(LONG).hold(HOLD);
        let deposit = depositor.deposit(&account, options, true, None);
        match drop_at_poll(poll, deposit).await {
            Dropped::Finished(answer) => {
                assert_eq!(answer, Some(Answer::Committed));
                finishes += 1;
                poll = 0;
            }
            Dropped::Dropped { .. } => {
                drops.fetch_add(1, Ordering::SeqCst);
                poll += 1;
            }
        }
    }
    finishes
}
