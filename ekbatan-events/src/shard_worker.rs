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

impl ShardWorker {
    /// Runs until the node stops.
    pub(crate) async fn run(mut self) {
        let mut streams = Streams::default();
        let mut runs: JoinSet<(u64, Ended)> = JoinSet::new();
        let mut commits = self.hub.commits();
        let mut polling: Option<Polling> = None;
        // A round that found deliveries behind one that failed meanwhile must not let them start.
        let mut failed_meanwhile: HashSet<StreamKey> = HashSet::new();
        let mut pause = self.settings.shortest_poll;
        let mut next = Instant::now();
        let mut checked = None::<Instant>;
        let mut known = *self.identity.borrow_and_update();
        loop {
            let stop = *self.stop.borrow_and_update();
            let deadline = match stop {
                Stop::No => None,
                Stop::At(deadline) => Some(deadline),
            };
            if deadline.is_some() || known.is_none() {
                // Nothing new begins.
            } else {
                while let Some(Started { claimed, epoch }) = streams.start() {
                    let running = self.runner.clone().run(claimed);
                    runs.spawn(async move { (epoch, running.await) });
                }
            }
            if let Some(deadline) = deadline
                && polling.is_none()
                && (runs.is_empty() || Instant::now() >= deadline)
            {
                return self.hand_back(streams, runs).await;
            }
            let may_poll = polling.is_none() && deadline.is_none();
            if may_poll
                && Instant::now() >= next
                && let Some(node) = known
            {
                let checks = checked.is_none_or(|last| last.elapsed() >= CHECKS);
                if checks {
                    checked = Some(Instant::now());
                }
                failed_meanwhile.clear();
                polling = self.poll(&streams, node, checks).map(Polling::start);
                next = Instant::now() + pause;
            }
            // Without an identity, and once its time is over, a node waits for what is under way.
            let (wakes, has_time) = match deadline {
                Some(deadline) => (deadline, Instant::now() < deadline),
                None => (next, polling.is_none() && known.is_some()),
            };
            tokio::select! {
                Some(ended) = runs.join_next() => {
                    // A run catches the panics of its handler.
                    if let Ok((epoch, ended)) = ended {
                        if !matches!(ended.end, End::Handled) {
                            failed_meanwhile.extend(ended.stream);
                        }
                        self.end(&mut streams, epoch, ended).await;
                    }
                }
                polled = wait_for(&mut polling) => {
                    polling = None;
                    match polled {
                        Ok(polled) => {
                            pause = if polled.is_busy {
                                self.settings.shortest_poll
                            } else {
                                (pause * 2).min(self.settings.longest_poll)
                            };
                            next = if polled.is_busy { Instant::now() } else { Instant::now() + pause };
                            // What a lost node has claimed is released by others.
                            if *self.identity.borrow() == known {
                                let is_late = |one: &mut Claimed| {
                                    one.stream().is_some_and(|key| failed_meanwhile.contains(&key))
                                };
                                let mut claimed = polled.claimed;
                                let late = claimed.extract_if(.., is_late).collect();
                                self.give_back(late, self.runner.clock.now()).await;
                                streams.add(claimed);
                            }
                        }
                        Err(error) => {
                            tracing::warn!(shard = %self.runner.shard.identifier(), %error, "looking for events failed; trying again");
                            pause = (pause * 2).min(self.settings.longest_poll);
                            next = Instant::now() + pause;
                        }
                    }
                }
                _ = commits.changed() => {
                    pause = self.settings.shortest_poll;
                    next = next.min(Instant::now() + pause);
                }
                Ok(()) = self.identity.changed() => {
                    known = *self.identity.borrow_and_update();
                    streams.begin_epoch();
                    // It may have claimed what stands behind a forgotten one. If the identity comes
                    // back, the next check releases that.
                    polling = None;
                    checked = None;
                }
                Ok(()) = self.stop.changed() => {}
                () = tokio::time::sleep_until(wakes), if has_time => {}
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
    async fn end(&self, streams: &mut Streams, epoch: u64, ended: Ended) {
        let Ended { handler, id, stream, end } = ended;
        let behind = streams.end(epoch, handler, id, stream, matches!(end, End::Handled));
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
    async fn hand_back(self, mut streams: Streams, mut runs: JoinSet<(u64, Ended)>) {
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
