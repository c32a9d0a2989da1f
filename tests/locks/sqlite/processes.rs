//! Several processes on one file. A test starts itself as the other processes.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ekbatan::lock::{KeyedLockProvider, LockKey, LockOptions, LockSource};
use ekbatan_testkit::TempSqlite;

use crate::providers::{LONG, on_sqlite};
use crate::run_once::until_it_runs;

const URL: &str = "EKBATAN_TEST_LOCK_FILE_URL";
const LOG: &str = "EKBATAN_TEST_LOCK_FILE_LOG";

/// Starts a test as another process that works on the file.
fn another(test: &str, file: &TempSqlite, log: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("sqlite::processes::{test}"), "--nocapture"])
        .env(URL, file.url())
        .env(LOG, log)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits for a line with this beginning, and returns its rest.
fn until_printed(child: &mut Child, beginning: &str) -> String {
    let mut out = BufReader::new(child.stdout.take().unwrap());
    loop {
        let mut line = String::new();
        assert!(
            out.read_line(&mut line).unwrap() > 0,
            "the process prints the line before it ends"
        );
        if let Some(rest) = line.trim_end().strip_prefix(beginning) {
            let rest = rest.to_owned();
            // Later lines stay in the pipe.
            child.stdout = Some(out.into_inner());
            return rest;
        }
    }
}

/// Prints a line of its own; the test harness may have printed an incomplete one.
fn say(what: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "\n{what}").unwrap();
    out.flush().unwrap();
}

/// The number of leases of each process.
const TURNS: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_on_one_file_exclude_each_other() {
    if let (Ok(url), Ok(log)) = (std::env::var(URL), std::env::var(LOG)) {
        return count(&url, Path::new(&log)).await;
    }
    let file = TempSqlite::new().unwrap();
    let log = file.path().with_extension("log");
    std::fs::write(&log, "").unwrap();
    // All processes wait until every one is ready.
    let locks = on_sqlite(&file.url()).await;
    let first = locks.acquire(&LockKey::named("counter"), LONG).await.unwrap();
    let name = "processes_on_one_file_exclude_each_other";
    let mut children: Vec<Child> = (0..3).map(|_| another(name, &file, &log)).collect();
    for child in &mut children {
        until_printed(child, "ready");
    }
    first.release().await;
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let log = std::fs::read_to_string(&log).unwrap();
    let (mut counted, mut last) = (0, 0);
    for line in log.lines() {
        let (number, token) = line.split_once(' ').unwrap();
        counted += 1;
        assert_eq!(number.parse::<usize>().unwrap(), counted, "two processes read the same number");
        let token = token.parse::<i64>().unwrap();
        assert!(token > last, "tokens grow");
        last = token;
    }
    assert_eq!(counted, 3 * TURNS);
}

/// Reads the last number and writes the next one, in separate steps.
async fn count(url: &str, log: &Path) {
    let locks = on_sqlite(url).await;
    let key = LockKey::named("counter");
    say("ready");
    for _ in 0..TURNS {
        let lease = locks.acquire(&key, LONG).await.unwrap();
        let read = std::fs::read_to_string(log).unwrap();
        tokio::task::yield_now().await;
        let line = format!("{} {}\n", read.lines().count() + 1, lease.token());
        std::fs::write(log, read + &line).unwrap();
        lease.release().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keys_of_a_killed_process_are_free_after_their_terms() {
    if let Ok(url) = std::env::var(URL) {
        return hold_forever(&url).await;
    }
    let file = TempSqlite::new().unwrap();
    let locks = on_sqlite(&file.url()).await;
    let name = "the_keys_of_a_killed_process_are_free_after_their_terms";
    let mut child = another(name, &file, file.path());
    let token: i64 = until_printed(&mut child, "held by token ").parse().unwrap();
    let renewed = LockKey::named("renewed");
    let holder = locks.inspect(&renewed).await.unwrap().expect("it is renewed");
    assert!(holder.holder.contains(&child.id().to_string()), "{holder:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    // A term that is not renewed expires soon, and not early.
    let begun = Instant::now();
    let left = locks.inspect(&renewed).await.unwrap().and_then(|holder| holder.remaining);
    let lease = locks.try_acquire(&renewed, LONG, LONG).await.unwrap().unwrap();
    let left = left.unwrap_or_default();
    assert!(begun.elapsed() + Duration::from_millis(2) >= left, "{left:?}");
    assert!(lease.token() > token);
    // A long term does not expire.
    let long = LockKey::named("long");
    assert!(locks.try_acquire(&long, Duration::ZERO, LONG).await.unwrap().is_none());
    assert!(locks.force_release(&long, "its process is dead").await.unwrap());
    assert!(locks.try_acquire(&long, Duration::ZERO, LONG).await.unwrap().is_some());
}

/// `at_least` of the work.
const AT_LEAST: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_work_of_a_killed_process_runs_again_after_at_least() {
    if let Ok(url) = std::env::var(URL) {
        return run_forever(&url).await;
    }
    let file = TempSqlite::new().unwrap();
    let locks = on_sqlite(&file.url()).await;
    let name = "the_work_of_a_killed_process_runs_again_after_at_least";
    let begun = Instant::now();
    let mut child = another(name, &file, file.path());
    until_printed(&mut child, "at work");
    child.kill().unwrap();
    child.wait().unwrap();
    until_it_runs(&locks, &LockKey::named("report")).await;
    assert!(begun.elapsed() >= AT_LEAST, "{:?}", begun.elapsed());
}

async fn run_forever(url: &str) {
    let locks = on_sqlite(url).await;
    let work = async |_| {
        say("at work");
        std::future::pending::<Result<(), ()>>().await
    };
    let key = LockKey::named("report");
    let _ = locks.run_once(&key, AT_LEAST, AT_LEAST, work).await;
}

async fn hold_forever(url: &str) {
    let locks = on_sqlite(url).await;
    let options = LockOptions::wait(LONG).hold(LONG * 60).renewed(Duration::from_secs(3));
    let renewed = locks.take(&LockKey::named("renewed"), &options).await.unwrap().unwrap();
    let long = locks.acquire(&LockKey::named("long"), LONG * 60).await.unwrap();
    say(&format!("held by token {}", renewed.token()));
    std::future::pending::<()>().await;
    drop((renewed, long));
}
