//! A holder is stopped for longer than its hold while a successor takes over and commits. When the
//! holder continues in the middle of its own commit, that commit must be rejected.

use std::time::Duration;

use ekbatan_testkit::Proxy;
use support::seed;

use crate::history::{Answer, Broken, History};
use crate::ledger::Ledger;
use crate::providers::Kind;
use crate::server::LockServer;
use crate::worker::{Record, Report, Request, Worker, finished};

on_every_provider_with_deposits! {
    a_stopped_holder_commits_nothing,
    without_the_fence_it_commits_and_the_history_shows_it,
}

/// Where the holder is stopped.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    /// After its read and before its commit. Its own clock may stop the commit.
    BeforeItsCommit,
    /// Its commit is sent and has not arrived: only the fence can reject it.
    CommitOnItsWay,
    /// Shortly before, during or after its commit.
    Any,
}

/// A worker that is stopped, whose connection to the ledger is a proxy, and its successor.
struct Scene {
    kind: Kind,
    server: LockServer,
    ledger: Ledger,
    record: Record,
    proxy: Proxy,
    stopped: Worker,
    successor: Worker,
    accounts: usize,
    hold: Duration,
}

/// So long that no lease expires during the test.
const LONG: Duration = Duration::from_secs(3_600);

impl Scene {
    async fn start(kind: Kind) -> Self {
        let (server, ledger) = (LockServer::shared(kind).await, Ledger::create().await);
        let record = Record::default();
        let address = ledger.url.split('@').next_back().unwrap().split('/').next().unwrap();
        let proxy = Proxy::start(address).await.unwrap();
        let through = proxy.url_for(&ledger.url);
        let mut stopped = Worker::start(kind, &server.url, &through, &record).await;
        // The first deposit opens the connections.
        let account = "the first".to_owned();
        stopped.send(&Request::Deposit { account, hold: LONG, fenced: true, waits: false });
        while !matches!(stopped.receive().await, Report::Done(_)) {}
        let successor = Worker::start(kind, &server.url, &ledger.url, &record).await;
        let hold = Duration::from_millis(120);
        Self { kind, server, ledger, record, proxy, stopped, successor, accounts: 0, hold }
    }

    /// The answer that the stopped worker receives; nothing if it lost its lease too early.
    async fn round(
        &mut self,
        moment: Moment,
        fenced: bool,
        random: &mut fastrand::Rng,
    ) -> Option<Answer> {
        self.accounts += 1;
        let account = format!("account {}", self.accounts);
        let deposit =
            |hold, waits| Request::Deposit { account: account.clone(), hold, fenced, waits };
        // A server that does not end leases by itself is requested to below.
        let hold = if self.kind.expires() { self.hold } else { LONG };
        self.stopped.send(&deposit(hold, true));
        if !matches!(self.stopped.receive().await, Report::Read) {
            // The machine is too slow for so short a hold, or the lock could not be acquired right
            // after its session was ended.
            self.hold *= 2;
            return None;
        }
        match moment {
            Moment::BeforeItsCommit => {
                self.stopped.freeze_between_writes(&self.server.url).await;
                self.stopped.send(&Request::GoOn);
            }
            Moment::CommitOnItsWay => {
                self.proxy.reset();
                self.proxy.stall();
                self.stopped.send(&Request::GoOn);
                while self.proxy.round_trips() == 0 {
                    if self.stopped.try_receive().is_some() {
                        // Its lease expired before it sent the commit.
                        self.proxy.resume();
                        self.hold *= 2;
                        return None;
                    }
                    tokio::time::sleep(Duration::from_micros(200)).await;
                }
                self.stopped.freeze_between_writes(&self.server.url).await;
            }
            Moment::Any => {
                // The commit takes longer than stopping the process.
                self.proxy.set_delay(Duration::from_micros(random.u64(..4_000)));
                self.stopped.send(&Request::GoOn);
                self.stopped.freeze();
            }
        }
        if !self.kind.expires() {
            let ended = self.server.end_sessions_of(self.stopped.id()).await;
            // At any moment it may have released its lock already.
            assert!(ended > 0 || matches!(moment, Moment::Any), "the lock has no session");
        }
        self.successor.send(&deposit(LONG, false));
        assert!(matches!(self.successor.receive().await, Report::Read));
        let took_over = self.successor.receive().await;
        assert!(matches!(took_over, Report::Done(Some(Answer::Committed))), "{took_over:?}");
        // The commit arrives before its holder continues, or after.
        let arrives_first = random.bool();
        if arrives_first {
            self.proxy.resume();
        }
        self.stopped.thaw();
        self.proxy.resume();
        self.proxy.set_delay(Duration::ZERO);
        match self.stopped.receive().await {
            Report::Done(Some(answer)) => Some(answer),
            other => panic!("{other:?}"),
        }
    }

    async fn end(self) -> History {
        self.stopped.stop().await;
        self.successor.stop().await;
        finished(&self.record, &self.ledger, &self.server).await
    }
}

async fn a_stopped_holder_commits_nothing(kind: Kind) {
    let mut random = seed::random();
    use Moment::{Any, BeforeItsCommit, CommitOnItsWay};
    let moments = match kind {
        // At any moment it may write to the file, which is then locked for all.
        Kind::Sqlite => [BeforeItsCommit, CommitOnItsWay, CommitOnItsWay, CommitOnItsWay],
        _ => [BeforeItsCommit, CommitOnItsWay, CommitOnItsWay, Any],
    };
    let mut schedule = moments.repeat(kind.rounds(4, 53));
    random.shuffle(&mut schedule);
    let mut scene = Scene::start(kind).await;
    let (mut rejected, mut repeated) = (0, 0);
    for moment in &schedule {
        let answer = loop {
            match scene.round(*moment, true, &mut random).await {
                Some(answer) => break answer,
                None => repeated += 1,
            }
        };
        match moment {
            Moment::Any => {}
            _ => assert_eq!(answer, Answer::NotCommitted, "{moment:?}"),
        }
        rejected += usize::from(answer == Answer::NotCommitted);
    }
    println!(
        "{kind:?}: {} rounds, {rejected} commits rejected, {repeated} rounds repeated",
        schedule.len()
    );
    let history = scene.end().await;
    history.check().unwrap();
    assert!(history.commits.len() >= schedule.len());
}

/// Shows that the test above can fail.
async fn without_the_fence_it_commits_and_the_history_shows_it(kind: Kind) {
    let mut random = seed::random();
    for moment in [Moment::BeforeItsCommit, Moment::CommitOnItsWay] {
        let mut scene = Scene::start(kind).await;
        let answer = loop {
            if let Some(answer) = scene.round(moment, false, &mut random).await {
                break answer;
            }
        };
        assert_eq!(answer, Answer::Committed, "only the fence rejects it");
        let broken = scene.end().await.check().unwrap_err();
        assert!(matches!(broken, Broken::OutOfOrder { .. }), "{broken}");
    }
}
