//! Handles the events of one shard: claims deliveries, runs their handlers, and looks for more.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{
    Arrived, Born, Delivery, DeliveryHub, DeliveryOwner, Ownership, PriorityCounts,
};
use ekbatan_core::domain::Stored;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::claims::candidates::Room;
use crate::claims::claimed::{Claimed, StreamKey};
use crate::claims::held_sizes::HeldSizes;
use crate::claims::poll::{Poll, Polled};
use crate::claims::rounds::{Polling, Rounds, unavailable};
use crate::claims::streams::{Started, Streams};
use crate::ending::HandedBack;
use crate::error::EventsError;
use crate::handlers::handler_set::HandlerSet;
use crate::handlers::node_handler::Handler;
use crate::nodes::alive::Alive;
use crate::nodes::membership::{release, release_until};
use crate::nodes::registration::Registrar;
use crate::read_events::ClaimedEvent;
use crate::runs::delivery_run::{End, Ended, EndedRun, Runner};
use crate::runs::unwanted::passed_over_for;
use crate::settings::Settings;
use crate::worker::doorbell::NodeDoorbell;
use crate::worker::relay_gates::RelayGates;
use crate::worker::run_tasks::RunTasks;

/// The time after which a round is given up.
const LONGEST_POLL: Duration = Duration::from_secs(30);

/// For how long after its time a node that stops waits for the end of a round.
const LAST_ROUND: Duration = Duration::from_secs(5);

/// For how long the worker waits at most until deliveries are given back. A row may be locked.
const LONGEST_RELEASE: Duration = Duration::from_secs(2);

/// Until when a node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It does not stop.
    No,
    /// It claims nothing more, and waits for its handlers until then.
    At(Instant),
}

/// A delivery that is not handled now, and until when it waits; `None`: it waits for a node only.
pub(crate) type GivenBack = (Stored<Delivery>, Option<DateTime<Utc>>);

/// Handles the events of one shard.
pub(crate) struct ShardWorker {
    pub(crate) runner: Runner,
    pub(crate) handlers: HandlerSet,
    pub(crate) hub: Arc<DeliveryHub>,
    pub(crate) registrar: Registrar,
    /// Gets the deliveries that commits of this process insert as claimed by the node.
    pub(crate) owner: Ownership,
    pub(crate) settings: Settings,
    pub(crate) doorbell: NodeDoorbell,
    /// The node's identity on this shard; `None` while it is not known to be alive.
    pub(crate) identity: watch::Receiver<Option<Uuid>>,
    pub(crate) alive: Alive,
    pub(crate) stop: watch::Receiver<Stop>,
}

/// What a worker has at hand.
pub(crate) struct Work {
    pub(crate) streams: Streams,
    pub(crate) runs: RunTasks<(u64, EndedRun)>,
    relays: RelayGates,
    rounds: Rounds,
    /// The identity under which deliveries were claimed.
    identity: Option<Uuid>,
}

impl ShardWorker {
    /// Runs until the node stops.
    pub(crate) async fn run(mut self) -> HandedBack {
        let mut commits = self.hub.commits();
        let mut work = Work {
            streams: Streams::default(),
            runs: RunTasks::default(),
            relays: RelayGates::new(self.handlers.clone(), self.runner.shard.identifier()),
            rounds: Rounds::new(self.settings.shortest_poll),
            identity: self.owner.node(),
        };
        work.relays.begin_epoch(work.identity);
        loop {
            self.arrive(&mut work).await;
            // Without an identity, and once its time is over, a node waits for what is under way.
            let stop = *self.stop.borrow_and_update();
            let is_alive = work.identity.is_some_and(|node| self.alive.is_under(node));
            let (wakes, has_time) = match stop {
                Stop::No => {
                    if is_alive {
                        self.begin(&mut work);
                    }
                    let is_idle = work.rounds.under_way.is_none();
                    (work.rounds.next, is_idle && is_alive)
                }
                Stop::At(deadline) => {
                    self.owner.close();
                    let now = Instant::now();
                    let has_time = now < deadline;
                    // Commits that give this node something may be under way.
                    let is_idle = work.runs.is_empty() && self.owner.in_flight() == 0;
                    let is_done = is_idle || !has_time;
                    // What a round claims is handed back, unless others take it over in any case.
                    let last = self.alive.ends().clamp(deadline, deadline + LAST_ROUND);
                    if is_done && (work.rounds.under_way.is_none() || now >= last) {
                        work.rounds.under_way = None;
                        return self.hand_back(work).await;
                    }
                    (if has_time { deadline } else { last }, true)
                }
            };
            let (begins, opens) = match stop {
                Stop::No if is_alive => (
                    work.streams.next_start(|handler| work.relays.is_open(handler)),
                    work.relays.next(|relay| work.streams.is_idle(relay)),
                ),
                _ => (None, None),
            };
            tokio::select! {
                Some(ended) = work.runs.join_next() => {
                    // Those that have ended meanwhile, too, before anything else is looked at.
                    let mut given_back = Vec::new();
                    for (epoch, ended) in ended.into_iter().chain(work.ended()) {
                        given_back.append(&mut self.end(&mut work, epoch, ended));
                    }
                    self.give_all_back(&mut work.rounds, given_back).await;
                }
                opened = work.relays.opened() => {
                    if let Some(relay) = opened {
                        self.owner.open_handler(relay);
                        work.rounds.hurry(self.settings.shortest_poll);
                    }
                }
                polled = work.rounds.ended() => {
                    work.rounds.under_way = None;
                    self.take(&mut work, polled).await;
                }
                () = self.owner.changed() => {}
                _ = commits.changed() => work.rounds.hurry(self.settings.shortest_poll),
                () = self.doorbell.heard() => work.rounds.hear(self.settings.shortest_poll),
                Ok(()) = self.identity.changed() => {
                    let identity = *self.identity.borrow_and_update();
                    work.begin_epoch(identity, &self.owner);
                    for relay in self.handlers.iter().filter(|of| of.relay().is_some()) {
                        self.owner.close_handler(relay.name);
                    }
                    work.relays.begin_epoch(identity);
                }
                Ok(()) = self.alive.renewed(), if !is_alive => {}
                Ok(()) = self.stop.changed() => {}
                () = tokio::time::sleep_until(begins.unwrap_or(wakes)), if begins.is_some() => {}
                () = tokio::time::sleep_until(opens.unwrap_or(wakes)), if opens.is_some() => {}
                () = tokio::time::sleep_until(wakes), if has_time => {}
            }
        }
    }

    /// Takes what commits of this process have handed over.
    async fn arrive(&self, work: &mut Work) {
        let Arrived { born, mut returned } = self.owner.take();
        let claimed = born.into_iter().filter_map(|one| self.claimed(one));
        // A relay may have been closed while they were committed.
        let (born, late): (Vec<_>, Vec<_>) =
            claimed.partition(|one| work.relays.is_open(one.handler.name));
        for one in &late {
            let born = self.owner.forget(one.handler.name, one.delivery.stream);
            returned.extend(born.into_iter().map(|one| one.delivery));
        }
        returned.extend(late.into_iter().map(|one| one.delivery));
        work.streams.add(born);
        self.owner.set_held(|handler| work.streams.counts(handler));
        if !returned.is_empty() {
            self.give_back(&mut work.rounds, returned).await;
            work.rounds.hurry(self.settings.shortest_poll);
        }
    }

    /// `None` is not reached: commits know the handlers of this node only.
    fn claimed(&self, Born { delivery, event }: Born) -> Option<Claimed> {
        let handler = self.handlers.get(&delivery.handler)?.clone();
        Some(Claimed { handler, delivery, event: ClaimedEvent::of(event) })
    }

    /// Begins what can begin: runs of claimed deliveries, and a round.
    fn begin(&self, work: &mut Work) {
        let Some(node) = work.identity else { return };
        work.relays.begin_opening(|relay| work.streams.is_idle(relay));
        let is_open = |handler: &str| work.relays.is_open(handler);
        while let Some(Started { claimed, epoch }) = work.streams.start(Instant::now(), is_open) {
            let runner = self.runner.clone();
            let ids = claimed.iter().map(|one| one.delivery.id.uuid()).collect();
            work.runs.spawn(ids, async move { (epoch, runner.run_all(claimed).await) });
        }
        if work.rounds.under_way.is_none() && Instant::now() >= work.rounds.next {
            let poll = self.poll(work, node);
            work.rounds.under_way = poll.map(Polling::start);
            work.rounds.next = Instant::now() + work.rounds.pause;
        }
    }

    /// Takes what a round has found.
    async fn take(&self, work: &mut Work, polled: Result<Polled, EventsError>) {
        let rounds = &mut work.rounds;
        let polled = polled.map(|polled| rounds.note(polled));
        if polled.is_err() {
            rounds.note_failure();
        }
        let is_busy = polled.as_ref().is_ok_and(|(_, is_busy)| *is_busy);
        rounds.end(is_busy, self.settings.shortest_poll, self.settings.longest_poll);
        match polled {
            // What a lost node has claimed is released by others.
            Ok(_) if *self.identity.borrow() != work.identity => {}
            Ok((mut claimed, _)) => {
                // What others have released while the node holds it, and what is behind that.
                let streams = &work.streams;
                let is_held = |one: &Claimed| streams.holds(one.delivery.id.uuid());
                let held_streams =
                    claimed.iter().filter(|one| is_held(one)).filter_map(Claimed::stream);
                rounds.failed_meanwhile.extend(held_streams);
                let failed = &rounds.failed_meanwhile;
                let closed = &rounds.closed_meanwhile;
                // A handler may have been paused or closed meanwhile.
                let is_late = |one: &mut Claimed| {
                    is_held(one)
                        || one.handler.is_paused()
                        || closed.contains(one.handler.name)
                        || one.stream().is_some_and(|key| failed.contains(&key))
                };
                for handler in self.handlers.iter() {
                    let Some(room) = rounds.room.get(handler.name) else { continue };
                    let of_handler = claimed.iter().filter(|one| one.handler.name == handler.name);
                    let counts = PriorityCounts::of(of_handler.map(|one| one.delivery.priority));
                    let left = work.streams.counts(handler.name);
                    rounds.held_sizes.claimed(handler, room, counts, left);
                }
                let late: Vec<Claimed> = claimed.extract_if(.., is_late).collect();
                for one in &claimed {
                    self.owner.claimed(one.handler.name, &one.delivery);
                }
                work.streams.add(claimed);
                let late = late.into_iter().map(|one| one.delivery).collect();
                self.give_back(rounds, late).await;
            }
            Err(error) => {
                let shard = self.runner.shard.identifier();
                tracing::warn!(%shard, %error, "looking for events failed; trying again");
            }
        }
    }

    /// How many deliveries of each handler a round may claim.
    fn room(&self, sizes: &mut HeldSizes, relays: &RelayGates) -> HashMap<&'static str, Room> {
        let room = |handler: &Arc<Handler>| {
            let most = sizes.size(handler);
            let of = |priority| (priority, self.owner.room(handler.name, priority, most));
            (handler.name, handler.priorities.iter().copied().map(of).collect())
        };
        let takes = |handler: &&Arc<Handler>| !handler.is_paused() && relays.is_open(handler.name);
        self.handlers.iter().filter(takes).map(room).collect()
    }

    /// Begins a round, if any handler may get something.
    fn poll(
        &self,
        work: &mut Work,
        node: Uuid,
    ) -> Option<BoxFuture<'static, Result<Polled, EventsError>>> {
        let subscriptions = self.hub.of(self.runner.shard.identifier())?;
        let Work { streams, rounds, relays, .. } = work;
        let checks = rounds.begin();
        rounds.room = self.room(&mut rounds.held_sizes, relays);
        let mut room = rounds.room.clone();
        room.retain(|handler, _| !subscriptions.is_paused(handler));
        let poll = Poll {
            shard: self.runner.shard.clone(),
            deliveries: self.runner.deliveries.clone(),
            handlers: self.handlers.clone(),
            registrar: self.registrar.clone(),
            hub: self.hub.clone(),
            subscriptions,
            node,
            held: streams.held(),
            passed_over: rounds.passed_over(streams),
            room,
            now: self.runner.clock.now(),
            checks,
            // If the round fails, that of the last check counts for the next one.
            unheld: rounds.unheld.clone(),
            look_from: std::mem::take(&mut rounds.look_from),
            terms: rounds.terms,
            claimed_at_once: self.settings.claimed_at_once / rounds.divisor,
            swept_at_once: (self.settings.swept_at_once / rounds.divisor).max(1),
        };
        let limited = async move {
            match tokio::time::timeout(LONGEST_POLL, poll.run()).await {
                Ok(polled) => polled,
                Err(_) => Err(unavailable(format!("no answer within {LONGEST_POLL:?}"))),
            }
        };
        Some(limited.boxed())
    }

    /// Takes note of a run that has ended. Returns what is to be given back, and until when it waits:
    /// deliveries behind one that failed.
    fn end(&self, work: &mut Work, epoch: u64, ended: EndedRun) -> Vec<GivenBack> {
        let EndedRun { handler, streams, part, is_away } = ended;
        work.streams.end_run(handler, part);
        let mut given_back = Vec::new();
        for of_stream in streams {
            match of_stream {
                Ended { end: End::Done(delivery), stream, .. } => {
                    self.begin_mark(work, epoch, handler, stream, *delivery);
                }
                ended => given_back.extend(self.end_stream(work, epoch, handler, ended)),
            }
        }
        if work.rounds.held_sizes.is_half_empty(handler, work.streams.counts(handler)) {
            work.rounds.next = Instant::now();
        }
        if work.relays.sent(handler, is_away) {
            self.owner.close_handler(handler);
            work.rounds.closed_meanwhile.insert(handler);
            for one in work.streams.take_waiting_of(handler) {
                let born = self.owner.forget(handler, one.delivery.stream);
                given_back.extend(born.into_iter().map(|one| (one.delivery, None)));
                given_back.push((one.delivery, None));
            }
        }
        given_back
    }

    /// Begins to mark the event of a handler that is done. The next event of its stream waits for that.
    fn begin_mark(
        &self,
        work: &mut Work,
        epoch: u64,
        handler: &'static str,
        stream: Option<StreamKey>,
        delivery: Stored<Delivery>,
    ) {
        // Not reached: a run has a handler of this node.
        let Some(handler) = self.handlers.get(handler).cloned() else { return };
        work.streams.begin_mark(handler.name);
        let ids = vec![delivery.id.uuid()];
        let marking = self.runner.clone().mark(handler, stream, delivery);
        work.runs.spawn(ids, async move { (epoch, marking.await) });
    }

    /// Takes note of what became of a stream. Returns what is to be given back, and until when it waits.
    fn end_stream(
        &self,
        work: &mut Work,
        epoch: u64,
        handler: &'static str,
        ended: Ended,
    ) -> Vec<GivenBack> {
        let Ended { ids, stream, handled, end, rest } = ended;
        let is_handled = end.is_final() && rest.is_empty();
        if let (End::Left { pause, .. }, Some(stream)) = (&end, stream) {
            work.rounds.pass_over(stream, passed_over_for(*pause));
        }
        if !is_handled {
            work.rounds.failed_meanwhile.extend(stream);
        }
        let behind = work.streams.end(epoch, handler, &ids, stream, is_handled);
        let mut behind: Vec<_> =
            rest.into_iter().chain(behind.into_iter().map(|one| one.delivery)).collect();
        match stream {
            Some(stream @ (_, model)) if is_handled => {
                work.rounds.has_less(&work.streams, stream);
                (0..handled).for_each(|_| self.owner.handled(handler, model));
            }
            Some((_, model)) => {
                let born = self.owner.forget(handler, model);
                behind.extend(born.into_iter().map(|one| one.delivery));
            }
            None => {}
        }
        let until = match end {
            End::Failed { until } => until,
            End::Left { until, .. } => Some(until),
            _ => None,
        };
        behind.into_iter().map(|delivery| (delivery, until)).collect()
    }

    /// Releases deliveries that are not to be handled now.
    async fn give_back(&self, rounds: &mut Rounds, deliveries: Vec<Stored<Delivery>>) {
        let deliveries = deliveries.into_iter().map(|delivery| (delivery, None)).collect();
        self.give_all_back(rounds, deliveries).await;
    }

    /// Releases deliveries, each at once or until a time. They travel together. Those that are not released
    /// now, the check of a round releases soon.
    async fn give_all_back(&self, rounds: &mut Rounds, deliveries: Vec<GivenBack>) {
        let releasing = tokio::time::timeout(LONGEST_RELEASE, self.release_all(deliveries));
        let are_released = releasing.await.unwrap_or_else(|_| {
            tracing::warn!(
                "deliveries were not given back within {LONGEST_RELEASE:?}; a later check does it"
            );
            false
        });
        if !are_released {
            rounds.look_again();
        }
    }

    /// The same, for as long as it takes. Answers whether no release has failed.
    pub(crate) async fn release_all(&self, deliveries: Vec<GivenBack>) -> bool {
        let (rows, now) = (&self.runner.deliveries, self.runner.clock.now());
        let releases = deliveries.into_iter().map(|(delivery, until)| async move {
            match until {
                Some(until) => release_until(rows, delivery, until).await,
                None => release(rows, delivery, now).await,
            }
        });
        let released = join_all(releases).await;
        for error in released.iter().filter_map(|released| released.as_ref().err()) {
            tracing::warn!(%error, "a delivery was not given back; a later check does it");
        }
        released.iter().all(Result::is_ok)
    }
}

impl Work {
    /// The runs that have ended and were not taken note of. A run catches its panics.
    fn ended(&mut self) -> Vec<(u64, EndedRun)> {
        std::iter::from_fn(|| self.runs.try_join_next()).flatten().collect()
    }

    /// Forgets what was claimed under another identity.
    fn begin_epoch(&mut self, identity: Option<Uuid>, owner: &DeliveryOwner) {
        self.identity = identity;
        owner.begin_epoch(identity);
        self.streams.begin_epoch();
        // The round may have claimed what stands behind a forgotten delivery. If the identity comes
        // back, the next checks release that.
        (self.rounds.under_way, self.rounds.checked) = (None, None);
        self.rounds.look_again();
    }
}
