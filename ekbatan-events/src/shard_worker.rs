//! Handles the events of one shard: claims deliveries, runs their handlers, and looks for more.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::DeliveryHub;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use crate::claim::{Claimed, StreamKey};
use crate::delivery_run::{End, Ended, Runner};
use crate::error::EventsError;
use crate::handler_set::HandlerSet;
use crate::membership::release;
use crate::poll::{Poll, Polled};
use crate::settings::Settings;
use crate::streams::{Started, Streams};

/// The time after which a round is given up.
const LONGEST_POLL: Duration = Duration::from_secs(30);

/// How often rows are checked that nobody would find otherwise.
const CHECKS: Duration = Duration::from_secs(5);

/// Until when a node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It does not stop.
    No,
    /// It claims nothing more, and waits for its handlers until then.
    At(Instant),
}

/// Handles the events of one shard.
pub(crate) struct ShardWorker {
    pub(crate) runner: Runner,
    pub(crate) handlers: HandlerSet,
    pub(crate) hub: Arc<DeliveryHub>,
    pub(crate) settings: Settings,
    /// The node's identity on this shard; `None` while it is not known to be alive.
    pub(crate) identity: watch::Receiver<Option<Uuid>>,
    pub(crate) stop: watch::Receiver<Stop>,
}

/// What a worker has at hand.
struct Work {
    streams: Streams,
    runs: JoinSet<(u64, Ended)>,
    rounds: Rounds,
    /// The identity under which deliveries were claimed.
    identity: Option<Uuid>,
}

/// When a worker looks for deliveries.
struct Rounds {
    under_way: Option<Polling>,
    next: Instant,
    /// The pause after a round that finds nothing.
    pause: Duration,
    checked: Option<Instant>,
    /// The streams of which a run has failed since the round began. The round must not let what it
    /// found behind that start.
    failed_meanwhile: HashSet<StreamKey>,
}

impl ShardWorker {
    /// Runs until the node stops.
    pub(crate) async fn run(mut self) {
        let mut commits = self.hub.commits();
        let mut work = Work {
            streams: Streams::default(),
            runs: JoinSet::new(),
            rounds: Rounds {
                under_way: None,
                next: Instant::now(),
                pause: self.settings.shortest_poll,
                checked: None,
                failed_meanwhile: HashSet::new(),
            },
            identity: *self.identity.borrow_and_update(),
        };
        loop {
            // Without an identity, and once its time is over, a node waits for what is under way.
            let stop = *self.stop.borrow_and_update();
            let (wakes, has_time) = match stop {
                Stop::No => {
                    self.begin(&mut work);
                    let is_idle = work.rounds.under_way.is_none();
                    (work.rounds.next, is_idle && work.identity.is_some())
                }
                Stop::At(deadline) => {
                    let has_time = Instant::now() < deadline;
                    let is_done = work.runs.is_empty() || !has_time;
                    if is_done && work.rounds.under_way.is_none() {
                        return self.hand_back(work).await;
                    }
                    (deadline, has_time)
                }
            };
            tokio::select! {
                Some(ended) = work.runs.join_next() => {
                    // A run catches its panics.
                    if let Ok((epoch, ended)) = ended {
                        self.end(&mut work, epoch, ended).await;
                    }
                }
                polled = wait_for(&mut work.rounds.under_way) => {
                    work.rounds.under_way = None;
                    self.take(&mut work, polled).await;
                }
                _ = commits.changed() => work.rounds.hurry(self.settings.shortest_poll),
                Ok(()) = self.identity.changed() => {
                    work.begin_epoch(*self.identity.borrow_and_update());
                }
                Ok(()) = self.stop.changed() => {}
                () = tokio::time::sleep_until(wakes), if has_time => {}
            }
        }
    }

    /// Begins what can begin: runs of claimed deliveries, and a round.
    fn begin(&self, work: &mut Work) {
        let Some(node) = work.identity else { return };
        while let Some(Started { claimed, epoch }) = work.streams.start() {
            let running = self.runner.clone().run(claimed);
            work.runs.spawn(async move { (epoch, running.await) });
        }
        let rounds = &mut work.rounds;
        if rounds.under_way.is_none() && Instant::now() >= rounds.next {
            let checks = rounds.checked.is_none_or(|last| last.elapsed() >= CHECKS);
            if checks {
                rounds.checked = Some(Instant::now());
            }
            rounds.failed_meanwhile.clear();
            rounds.under_way = self.poll(&work.streams, node, checks).map(Polling::start);
            rounds.next = Instant::now() + rounds.pause;
        }
    }

    /// Takes what a round has found.
    async fn take(&self, work: &mut Work, polled: Result<Polled, EventsError>) {
        let rounds = &mut work.rounds;
        let is_busy = polled.as_ref().is_ok_and(|polled| polled.is_busy);
        if is_busy {
            rounds.pause = self.settings.shortest_poll;
            rounds.next = Instant::now();
        } else {
            rounds.pause = (rounds.pause * 2).min(self.settings.longest_poll);
            rounds.next = Instant::now() + rounds.pause;
        }
        match polled {
            // What a lost node has claimed is released by others.
            Ok(_) if *self.identity.borrow() != work.identity => {}
            Ok(Polled { mut claimed, .. }) => {
                let failed = &rounds.failed_meanwhile;
                let is_late =
                    |one: &mut Claimed| one.stream().is_some_and(|key| failed.contains(&key));
                let late = claimed.extract_if(.., is_late).collect();
                work.streams.add(claimed);
                self.give_back(late, self.runner.clock.now()).await;
            }
            Err(error) => {
                let shard = self.runner.shard.identifier();
                tracing::warn!(%shard, %error, "looking for events failed; trying again");
            }
        }
    }

    /// Begins a round, if any handler may get something.
    fn poll(
        &self,
        streams: &Streams,
        node: Uuid,
        checks: bool,
    ) -> Option<BoxFuture<'static, Result<Polled, EventsError>>> {
        let subscriptions = self.hub.of(self.runner.shard.identifier())?;
        let room: HashMap<&'static str, usize> = self
            .handlers
            .iter()
            .filter(|handler| !handler.is_paused())
            .map(|handler| {
                let most = (handler.options.concurrency * 4).clamp(64, 1_024);
                (handler.name, most.saturating_sub(streams.count(handler.name)))
            })
            .collect();
        let poll = Poll {
            shard: self.runner.shard.clone(),
            deliveries: self.runner.deliveries.clone(),
            handlers: self.handlers.clone(),
            subscriptions,
            node,
            held: streams.held().clone(),
            room,
            now: self.runner.clock.now(),
            checks,
        };
        let limited = async move {
            match tokio::time::timeout(LONGEST_POLL, poll.run()).await {
                Ok(polled) => polled,
                Err(_) => Err(unavailable(format!("no answer within {LONGEST_POLL:?}"))),
            }
        };
        Some(limited.boxed())
    }

    /// Takes note of a run that has ended. Deliveries behind one that failed are given back.
    async fn end(&self, work: &mut Work, epoch: u64, ended: Ended) {
        let Ended { handler, id, stream, end } = ended;
        let is_handled = matches!(end, End::Handled);
        if !is_handled {
            work.rounds.failed_meanwhile.extend(stream);
        }
        let behind = work.streams.end(epoch, handler, id, stream, is_handled);
        let due = match end {
            End::Failed { until: Some(until) } => until,
            _ => self.runner.clock.now(),
        };
        self.give_back(behind, due).await;
    }

    /// Releases deliveries that are not to be handled now.
    async fn give_back(&self, claimed: Vec<Claimed>, due: DateTime<Utc>) {
        for one in claimed {
            if let Err(error) = release(&self.runner.deliveries, one.delivery, due).await {
                tracing::warn!(%error, "a delivery was not given back; a later check does it");
            }
        }
    }

    /// Ends what still runs, and gives everything back.
    async fn hand_back(self, work: Work) {
        let Work { mut streams, mut runs, .. } = work;
        runs.shutdown().await;
        let now = self.runner.clock.now();
        let waiting = streams.take_waiting();
        let (running, count) = (streams.held().len(), waiting.len());
        if running + count > 0 {
            tracing::info!(shard = %self.runner.shard.identifier(), cancelled = running, waiting = count, "a node hands deliveries back");
        }
        self.give_back(waiting, now).await;
        // Those whose run was cancelled, by what the database knows of them.
        let Some(node) = *self.identity.borrow() else { return };
        let poll = Poll {
            shard: self.runner.shard.clone(),
            deliveries: self.runner.deliveries.clone(),
            handlers: HandlerSet::default(),
            subscriptions: Arc::default(),
            node,
            held: Default::default(),
            room: HashMap::new(),
            now,
            checks: true,
        };
        if let Err(error) = poll.run().await {
            tracing::warn!(%error, "deliveries were not given back; they are taken over later");
        }
    }
}

impl Work {
    /// Forgets what was claimed under another identity.
    fn begin_epoch(&mut self, identity: Option<Uuid>) {
        self.identity = identity;
        self.streams.begin_epoch();
        // The round may have claimed what stands behind a forgotten delivery. If the identity comes
        // back, the next check releases that.
        (self.rounds.under_way, self.rounds.checked) = (None, None);
    }
}

impl Rounds {
    /// Lets the next round begin soon.
    fn hurry(&mut self, pause: Duration) {
        self.pause = pause;
        self.next = self.next.min(Instant::now() + pause);
    }
}

/// A round that is under way, in a task of its own: it may hold a transaction, for whose end a
/// write of the worker waits. It ends when this is dropped.
struct Polling(JoinSet<Result<Polled, EventsError>>);

impl Polling {
    fn start(poll: BoxFuture<'static, Result<Polled, EventsError>>) -> Self {
        let mut task = JoinSet::new();
        task.spawn(poll);
        Self(task)
    }
}

/// Waits for the round that is under way, or for ever.
async fn wait_for(polling: &mut Option<Polling>) -> Result<Polled, EventsError> {
    match polling {
        Some(Polling(task)) => match task.join_next().await {
            Some(Ok(polled)) => polled,
            Some(Err(error)) => Err(unavailable(error.to_string())),
            None => Err(unavailable("the round has ended".to_owned())),
        },
        None => std::future::pending().await,
    }
}

fn unavailable(why: String) -> EventsError {
    let kind = ekbatan_core::db::DbErrorKind::Unavailable;
    EventsError::Database(ekbatan_core::db::DbError::new(kind, why))
}
