//! A holder that is stopped beyond its hold, while another one takes over and commits; it is
//! continued in the middle of its own commit, which must be refused.

use std::time::Duration;

use ekbatan_testkit::Proxy;

use crate::history::{Answer, Broken, History};
use crate::ledger::Ledger;
use crate::providers::Kind;
use crate::seed;
use crate::server::LockServer;
use crate::worker::{Record, Said, Task, Worker, finished};

on_every_provider! {
    a_stopped_holder_commits_nothing,
    without_the_fence_it_commits_and_the_history_shows_it,
}

/// How often the moments of the commit are tried.
const ROUNDS: usize = 53;

/// Where in its commit the holder stops.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    /// It has read, and has yet to commit; its own clock may tell it then.
    BeforeItsCommit,
    /// It has sent its commit, which has yet to arrive: only the fence can refuse it.
    CommitOnItsWay,
    /// It is about to commit, commits, or has committed.
    Any,
}

/// The one that is stopped, with a line of its own to the ledger, and the one that takes over.
struct Scene {
    kind: Kind,
    server: LockServer,
    ledger: Ledger,
    record: Record,
    line: Proxy,
    stopped: Worker,
    successor: Worker,
    accounts: usize,
    hold: Duration,
}

/// So long that what is left behind does not end by itself in the meantime.
const LONG: Duration = Duration::from_secs(3_600);

impl Scene {
    async fn start(kind: Kind) -> Self {
        let (server, ledger) = (LockServer::start(kind).await, Ledger::create().await);
        let record = Record::default();
        let address = ledger.url.split('@').next_back().unwrap().split('/').next().unwrap();
        let line = Proxy::start(address).await.unwrap();
        let through = line.url_for(&ledger.url);
        let mut stopped = Worker::start(kind, &server.url, &through, &record).await;
        // So that whatever it connects to is connected.
        let account = "the first".to_owned();
        stopped.tell(&Task::Deposit { account, hold: LONG, fenced: true, waits: false });
        while !matches!(stopped.hear().await, Said::Done(_)) {}
        let successor = Worker::start(kind, &server.url, &ledger.url, &record).await;
        let hold = Duration::from_millis(120);
        Self { kind, server, ledger, record, line, stopped, successor, accounts: 0, hold }
    }

    /// What the one that was stopped is told in the end; `None` if it lost its lease before.
    async fn round(
        &mut self,
        moment: Moment,
        fenced: bool,
        random: &mut fastrand::Rng,
    ) -> Option<Answer> {
        self.accounts += 1;
        let account = format!("account {}", self.accounts);
        let deposit = |hold, waits| Task::Deposit { account: account.clone(), hold, fenced, waits };
        // A server that does not end leases by itself is told to.
        let hold = if self.kind.expires() { self.hold } else { LONG };
        self.stopped.tell(&deposit(hold, true));
        if !matches!(self.stopped.hear().await, Said::Read) {
            // The machine is too busy for so short a hold, or the lock was not to be had
            // right after its session was ended.
            self.hold *= 2;
            return None;
        }
        match moment {
            Moment::BeforeItsCommit => {
                self.stopped.freeze();
                self.stopped.tell(&Task::GoOn);
            }
            Moment::CommitOnItsWay => {
                self.line.reset();
                self.line.stall();
                self.stopped.tell(&Task::GoOn);
                while self.line.round_trips() == 0 {
                    if self.stopped.heard().is_some() {
                        // It was not quick enough to send any.
                        self.line.resume();
                        self.hold *= 2;
                        return None;
                    }
                    tokio::time::sleep(Duration::from_micros(200)).await;
                }
                self.stopped.freeze();
            }
            Moment::Any => {
                // So that it takes longer than stopping it does.
                self.line.set_delay(Duration::from_micros(random.u64(..4_000)));
                self.stopped.tell(&Task::GoOn);
                self.stopped.freeze();
            }
        }
        if !self.kind.expires() {
            self.server.end_sessions_of(self.stopped.id()).await;
        }
        self.successor.tell(&deposit(LONG, false));
        assert!(matches!(self.successor.hear().await, Said::Read));
        let took_over = self.successor.hear().await;
        assert!(matches!(took_over, Said::Done(Some(Answer::Committed))), "{took_over:?}");
        // The commit arrives before its holder goes on, or after.
        let arrives_first = random.bool();
        if arrives_first {
            self.line.resume();
        }
        self.stopped.thaw();
        self.line.resume();
        self.line.set_delay(Duration::ZERO);
        match self.stopped.hear().await {
            Said::Done(Some(answer)) => Some(answer),
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
    let moments = [BeforeItsCommit, CommitOnItsWay, CommitOnItsWay, Any];
    let mut schedule = moments.repeat(ROUNDS);
    random.shuffle(&mut schedule);
    let mut scene = Scene::start(kind).await;
    let (mut refused, mut tried_again) = (0, 0);
    for moment in &schedule {
        let answer = loop {
            match scene.round(*moment, true, &mut random).await {
                Some(answer) => break answer,
                None => tried_again += 1,
            }
        };
        match moment {
            Moment::Any => {}
            _ => assert_eq!(answer, Answer::NotCommitted, "{moment:?}"),
        }
        refused += usize::from(answer == Answer::NotCommitted);
    }
    println!(
        "{kind:?}: {} rounds, {refused} commits refused, {tried_again} tried again",
        schedule.len()
    );
    let history = scene.end().await;
    history.check().unwrap();
    assert!(history.commits.len() >= schedule.len());
}

/// The test of the test above.
async fn without_the_fence_it_commits_and_the_history_shows_it(kind: Kind) {
    let mut random = seed::random();
    for moment in [Moment::BeforeItsCommit, Moment::CommitOnItsWay] {
        let mut scene = Scene::start(kind).await;
        let answer = loop {
            if let Some(answer) = scene.round(moment, false, &mut random).await {
                break answer;
            }
        };
        assert_eq!(answer, Answer::Committed, "nothing but the fence refuses it");
        let broken = scene.end().await.check().unwrap_err();
        assert!(matches!(broken, Broken::OutOfOrder { .. }), "{broken}");
    }
}
