//! A process whose clock is wrong by an hour: terms begin and end by the clock of the server, and
//! tokens grow.
//!
//! Needs the library of `faketime`, which `scripts/test stores` installs.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ekbatan::lock::{KeyedLockProvider, LockKey};

use crate::history::Answer;
use crate::ledger::Ledger;
use crate::providers::Kind;
use crate::server::LockServer;
use crate::worker::{Record, Report, Request, Worker};

on_providers! { @stores terms_and_tokens_do_not_follow_the_clock_of_a_process }

const HOLD: Duration = Duration::from_secs(10);

const PATIENCE: Duration = Duration::from_secs(60);

/// The variables by which a process with several threads sees another time of day. Durations stay
/// right.
pub fn shifted(by: &str) -> Vec<(&'static str, String)> {
    let folders = std::fs::read_dir("/usr/lib").unwrap().flatten();
    let library: Vec<PathBuf> = folders
        .map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"))
        .filter(|library| library.is_file())
        .collect();
    let library = library.first().expect("Debian's package faketime is installed");
    vec![
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME", by.to_owned()),
        ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}

async fn terms_and_tokens_do_not_follow_the_clock_of_a_process(kind: Kind) {
    let (server, ledger) = (LockServer::start(kind).await, Ledger::create().await);
    let here = kind.connect(&server.url).await;
    for shift in ["+3600s", "-3600s"] {
        let account = format!("account {shift}");
        let key = LockKey::named(&account);
        let before = here.acquire(&key, PATIENCE).await.unwrap();
        let first_token = before.token();
        assert!(before.release().await);
        let record = Record::default();
        let (url, env) = (&server.url, shifted(shift));
        let mut wrong = Worker::start_with(kind, url, &ledger.url, &record, &env).await;
        wrong.send(&Request::Deposit {
            account: account.clone(),
            hold: HOLD,
            fenced: true,
            waits: true,
        });
        assert!(matches!(wrong.receive().await, Report::Read));
        wrong.freeze();
        let seen = Instant::now();
        let there = here.inspect(&key).await.unwrap().expect("it is held").remaining.unwrap();
        // What the process and its last extension add to a hold is less than this.
        assert!(there <= HOLD + Duration::from_secs(2), "{shift}: {there:?}");
        let next = here.try_acquire(&key, PATIENCE, PATIENCE).await.unwrap().expect("it gets free");
        // In HBase this process knows the clock of the server from the last answer only.
        assert!(seen.elapsed() + HOLD / 4 >= there, "{shift}: it was free early");
        let token = record.lock().unwrap().grants.last().map(|grant| grant.token).unwrap();
        assert!(first_token < token && token < next.token(), "{shift}: tokens grow");
        assert!(next.release().await);
        let mut right = Worker::start(kind, url, &ledger.url, &Record::default()).await;
        right.send(&Request::Deposit { account, hold: PATIENCE, fenced: true, waits: false });
        assert!(matches!(right.receive().await, Report::Read));
        let answer = right.receive().await;
        assert!(matches!(answer, Report::Done(Some(Answer::Committed))), "{answer:?}");
        right.stop().await;
        wrong.thaw();
        wrong.send(&Request::GoOn);
        let late = wrong.receive().await;
        assert!(matches!(late, Report::Done(Some(Answer::NotCommitted))), "{shift}: {late:?}");
        wrong.stop().await;
    }
}
