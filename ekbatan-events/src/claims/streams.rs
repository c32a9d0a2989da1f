//! The deliveries that a node has claimed and does not handle yet.
//!
//! Invariant: the deliveries of one stream are handed out in order, and to one run at a time. A run of a
//! relay gets several of them, each other run gets one. This is so within one epoch: when the node's identity changes, everything is
//! forgotten, and the runs of earlier epochs only keep their handlers busy until they end.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use ekbatan_core::__private::deliveries::PriorityCounts;
use ekbatan_core::action::Priority;
use tokio::time::Instant;
use uuid::Uuid;

use crate::claims::claimed::{Claimed, StreamKey, place};
use crate::claims::ready_queue::ReadyQueue;
use crate::handlers::node_handler::Handler;

/// How much of its lateness a run does not pass on to the next ones, so that a rate is reached
/// although timers are late.
const LATE: Duration = Duration::from_millis(10);

/// How many events per place of a handler may be handled and not yet marked. If the process dies, these
/// are handled once more.
const MARKS: usize = 4;

/// How many bytes the payloads of a batch have; a batch that has as many gets no further delivery.
const BATCH_BYTES: usize = 16 * 1024 * 1024;

/// The deliveries of one run, and the epoch in which they were handed out.
pub(crate) struct Started {
    /// At least one, all of one handler.
    pub(crate) claimed: Vec<Claimed>,
    pub(crate) epoch: u64,
}

/// A part of a run. Of each, a handler has a number at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunPart {
    Handling,
    Marking,
}

/// Claimed deliveries, in the order in which they are handled.
#[derive(Default)]
pub(crate) struct Streams {
    epoch: u64,
    /// By handler, those that may start now.
    ready: BTreeMap<&'static str, ReadyQueue>,
    /// By stream, those behind one that is ready or is being handled.
    behind: HashMap<StreamKey, VecDeque<Claimed>>,
    /// By handler, how many are being handled.
    running: HashMap<&'static str, usize>,
    /// By handler, how many were handled and are being marked.
    marking: HashMap<&'static str, usize>,
    /// By handler with a rate, when the next run may begin.
    next: HashMap<&'static str, Instant>,
    /// All of them.
    held: HashMap<Uuid, Priority>,
    /// By handler, how many are held.
    counts: HashMap<&'static str, PriorityCounts>,
}

impl Streams {
    pub(crate) fn held(&self) -> HashSet<Uuid> {
        self.held.keys().copied().collect()
    }

    pub(crate) fn holds(&self, id: Uuid) -> bool {
        self.held.contains_key(&id)
    }

    /// The streams of which at least as many deliveries are held.
    pub(crate) fn of_at_least(&self, many: usize) -> impl Iterator<Item = StreamKey> {
        self.behind.iter().filter(move |(_, behind)| behind.len() + 1 >= many).map(|(key, _)| *key)
    }

    /// How many deliveries of a stream are held.
    pub(crate) fn of_stream(&self, stream: StreamKey) -> usize {
        self.behind.get(&stream).map_or(0, |behind| behind.len() + 1)
    }

    pub(crate) fn counts(&self, handler: &str) -> PriorityCounts {
        self.counts.get(handler).copied().unwrap_or_default()
    }

    /// Adds deliveries that were claimed together.
    pub(crate) fn add(&mut self, mut claimed: Vec<Claimed>) {
        claimed.sort_by_key(|one| place(&one.delivery));
        for one in claimed {
            let (id, priority) = (one.delivery.id.uuid(), one.delivery.priority);
            if self.held.insert(id, priority).is_none() {
                *self.counts.entry(one.handler.name).or_default() += PriorityCounts::one(priority);
            }
            match one.stream().map(|key| (key, self.behind.get_mut(&key))) {
                Some((_, Some(behind))) => behind.push_back(one),
                Some((key, None)) => {
                    self.behind.insert(key, VecDeque::new());
                    self.push_ready(one);
                }
                None => self.push_ready(one),
            }
        }
    }

    fn push_ready(&mut self, one: Claimed) {
        let queue = self.ready.entry(one.handler.name).or_default();
        // No event was ready, so none is late because of the rate.
        if queue.first().is_none()
            && let Some(next) = self.next.get_mut(one.handler.name)
        {
            *next = (*next).max(Instant::now());
        }
        queue.push(one);
    }

    /// Hands out the next deliveries whose handler is not busy and may begin another run.
    pub(crate) fn start(
        &mut self,
        now: Instant,
        is_open: impl Fn(&str) -> bool,
    ) -> Option<Started> {
        let may_begin = |handler: &Handler| {
            is_open(handler.name)
                && self.has_place(handler)
                && self.next_of(handler).is_none_or(|at| at <= now)
        };
        let mut handlers = self.ready.values().filter_map(ReadyQueue::first);
        let handler = handlers.find(|first| may_begin(&first.handler))?.handler.clone();
        let first = self.ready.get_mut(handler.name)?.pop()?;
        *self.running.entry(handler.name).or_default() += 1;
        if let Some(rate) = handler.options.rate {
            let due = self.next_of(&handler).unwrap_or(now);
            let begun = due.max(now.checked_sub(LATE).unwrap_or(now));
            self.next.insert(handler.name, begun + rate.pause());
        }
        let mut claimed = vec![first];
        if handler.batch_size() > 1 {
            self.fill(&mut claimed, handler.batch_size());
        }
        Some(Started { claimed, epoch: self.epoch })
    }

    /// Adds those behind the first delivery of a batch, and then other streams of its handler.
    fn fill(&mut self, batch: &mut Vec<Claimed>, size: usize) {
        let Some(handler) = batch.first().map(|first| first.handler.name) else { return };
        let mut bytes: usize = batch.iter().map(|one| one.event.bytes()).sum();
        while batch.len() < size && bytes < BATCH_BYTES {
            let key = batch.last().and_then(Claimed::stream);
            let follower = key.and_then(|key| self.behind.get_mut(&key)?.pop_front());
            let first_of_another = || self.ready.get_mut(handler).and_then(ReadyQueue::pop);
            let Some(next) = follower.or_else(first_of_another) else { break };
            bytes += next.event.bytes();
            batch.push(next);
        }
    }

    /// When the next delivery may start that waits for the rate of its handler only.
    pub(crate) fn next_start(&self, is_open: impl Fn(&str) -> bool) -> Option<Instant> {
        let ready = self.ready.values().filter_map(ReadyQueue::first).map(|one| &one.handler);
        let may_begin =
            |handler: &&std::sync::Arc<Handler>| is_open(handler.name) && self.has_place(handler);
        ready.filter(may_begin).filter_map(|it| self.next_of(it)).min()
    }

    /// Whether no run of a handler is under way.
    pub(crate) fn is_idle(&self, handler: &str) -> bool {
        self.running.get(handler).copied().unwrap_or_default() == 0
    }

    fn has_place(&self, handler: &Handler) -> bool {
        let concurrency = handler.options.concurrency;
        let has_room = |parts: &HashMap<_, usize>, most| {
            parts.get(handler.name).copied().unwrap_or_default() < most
        };
        has_room(&self.running, concurrency)
            && has_room(&self.marking, concurrency.saturating_mul(MARKS))
    }

    fn next_of(&self, handler: &Handler) -> Option<Instant> {
        self.next.get(handler.name).copied()
    }

    /// Takes note of a run whose handler is done. It leaves its place to others of the handler while its
    /// event is being marked.
    pub(crate) fn begin_mark(&mut self, handler: &'static str) {
        *self.marking.entry(handler).or_default() += 1;
    }

    /// Takes note of a part of a run that has ended.
    pub(crate) fn end_run(&mut self, handler: &'static str, part: RunPart) {
        let parts = match part {
            RunPart::Handling => &mut self.running,
            RunPart::Marking => &mut self.marking,
        };
        if let Some(count) = parts.get_mut(handler) {
            *count = count.saturating_sub(1);
        }
    }

    /// Takes back the deliveries of one stream that a run had. If they are not all handled, returns those
    /// behind them, which are not held any more. A run of an earlier epoch says nothing of its streams.
    pub(crate) fn end(
        &mut self,
        epoch: u64,
        handler: &'static str,
        ids: &[Uuid],
        stream: Option<StreamKey>,
        is_handled: bool,
    ) -> Vec<Claimed> {
        if epoch != self.epoch {
            return Vec::new();
        }
        ids.iter().for_each(|id| self.forget(handler, *id));
        let Some(key) = stream else { return Vec::new() };
        if !is_handled {
            let behind: Vec<Claimed> = self.behind.remove(&key).into_iter().flatten().collect();
            behind.iter().for_each(|one| self.forget(handler, one.delivery.id.uuid()));
            return behind;
        }
        match self.behind.get_mut(&key).and_then(VecDeque::pop_front) {
            Some(next) => self.push_ready(next),
            None => drop(self.behind.remove(&key)),
        }
        Vec::new()
    }

    /// Forgets all deliveries, because they belong to an identity that is over. Runs go on, and
    /// find out by their marks.
    pub(crate) fn begin_epoch(&mut self) {
        let running = std::mem::take(&mut self.running);
        let marking = std::mem::take(&mut self.marking);
        let next = std::mem::take(&mut self.next);
        *self = Self { epoch: self.epoch + 1, running, marking, next, ..Self::default() };
    }

    /// Takes all deliveries of a handler that are not handed out.
    pub(crate) fn take_waiting_of(&mut self, handler: &'static str) -> Vec<Claimed> {
        let mut waiting: Vec<Claimed> =
            self.ready.remove(handler).into_iter().flat_map(ReadyQueue::into_all).collect();
        // What is handed out ends the stream itself; the others are over.
        let over: Vec<StreamKey> = waiting.iter().filter_map(Claimed::stream).collect();
        let behind = self.behind.iter_mut().filter(|((of, _), _)| *of == handler);
        behind.for_each(|(_, behind)| waiting.extend(behind.drain(..)));
        over.iter().for_each(|key| drop(self.behind.remove(key)));
        waiting.iter().for_each(|one| self.forget(handler, one.delivery.id.uuid()));
        waiting
    }

    /// Takes all deliveries that are not handed out.
    pub(crate) fn take_waiting(&mut self) -> Vec<Claimed> {
        let behind = std::mem::take(&mut self.behind);
        let mut waiting: Vec<Claimed> = behind.into_values().flatten().collect();
        waiting
            .extend(std::mem::take(&mut self.ready).into_values().flat_map(ReadyQueue::into_all));
        waiting.iter().for_each(|one| self.forget(one.handler.name, one.delivery.id.uuid()));
        waiting
    }

    fn forget(&mut self, handler: &'static str, id: Uuid) {
        if let Some(priority) = self.held.remove(&id)
            && let Some(counts) = self.counts.get_mut(handler)
        {
            *counts -= PriorityCounts::one(priority);
        }
    }
}
