//! Callers that go away at every point where they wait: for the lock, for the read, for the
//! commit, for giving back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::prelude::*;
use ekbatan_testkit::{Dropped, drop_at_poll};
use tokio::task::JoinSet;

use crate::history::Answer;
use crate::ledger::{Depositor, Ledger};
use crate::providers::Kind;
use crate::server::LockServer;
use crate::worker::{Record, finished, note};

on_every_provider! { dropped_callers_leave_nothing_and_break_no_order }
on_every_provider! {
    only process Process: dropped_callers_leave_nothing_and_break_no_order
}

const LONG: Duration = Duration::from_secs(60);
/// So long that what is left behind does not end by itself in the meantime.
const HOLD: Duration = Duration::from_secs(3_600);
const ACCOUNTS: usize = 2;
const TASKS: usize = 4;
/// How many callers go away, at the least.
const DROPS: usize = 400;

async fn dropped_callers_leave_nothing_and_break_no_order(kind: Kind) {
    let (server, ledger) = (LockServer::start(kind).await, Ledger::create().await);
    let record = Record::default();
    // Two that know each other through the server only, where there is one.
    let one = kind.connect(&server.url).await;
    let other = match kind {
        Kind::Process => one.clone(),
        _ => kind.connect(&server.url).await,
    };
    let depositor = |locks: &LockProvider| {
        let record = record.clone();
        let tell = Arc::new(move |told| note(&record, told));
        Depositor { ledger: ledger.clone(), locks: locks.clone(), tell }
    };
    let drops = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let depositor = depositor([&one, &other][task % 2]);
        tasks.spawn(drop_at_every_poll(depositor, drops.clone()));
    }
    let finishes: Vec<usize> = tasks.join_all().await;
    // Whoever comes next is served, whatever those before left.
    for account in 0..ACCOUNTS {
        for locks in [&one, &other] {
            let options = LockOptions::wait(LONG).hold(HOLD);
            let depositor = depositor(locks);
            let answer = depositor.deposit(&account.to_string(), options, true, None).await;
            assert_eq!(answer, Some(Answer::Committed));
            let key = LockKey::named(&account.to_string());
            while locks.inspect(&key).await.unwrap().is_some() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }
    one.close().await;
    other.close().await;
    let history = finished(&record, &ledger, &server).await;
    history.check().unwrap();
    let drops = drops.load(Ordering::SeqCst);
    println!("{kind:?}: {drops} dropped, {finishes:?} finished, {} commits", history.commits.len());
    assert!(drops >= DROPS && finishes.iter().all(|finishes| *finishes > 0));
}

/// Goes away at the first poll, then at the second, and so on until it is through, over and
/// over; answers how often it was.
async fn drop_at_every_poll(depositor: Depositor, drops: Arc<AtomicUsize>) -> usize {
    let mut finishes = 0;
    let mut poll = 0;
    while finishes == 0 || drops.load(Ordering::SeqCst) < DROPS {
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
