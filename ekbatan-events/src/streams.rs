//! The deliveries that a node has claimed and does not handle yet.
//!
//! Invariant: of one stream, at most one delivery is handed out at a time, and they are handed out
//! in order. This is so within one epoch: when the node's identity changes, everything is
//! forgotten, and the runs of earlier epochs only keep their handlers busy until they end.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::claimed::{Claimed, StreamKey, place};
use crate::handler_set::Handler;

/// How much of its lateness a run does not pass on to the next ones, so that a rate is reached
/// although timers are late.
const LATE: Duration = Duration::from_millis(10);

/// A delivery that is handed out, and the epoch in which it was.
pub(crate) struct Started {
    pub(crate) claimed: Claimed,
    pub(crate) epoch: u64,
}

/// Claimed deliveries, in the order in which they are handled.
#[derive(Default)]
pub(crate) struct Streams {
    epoch: u64,
    /// Those that may start now.
    ready: VecDeque<Claimed>,
    /// By stream, those behind one that is ready or is being handled.
    behind: HashMap<StreamKey, VecDeque<Claimed>>,
    /// By handler, how many are being handled.
    running: HashMap<&'static str, usize>,
    /// By handler with a rate, when the next run may begin.
    next: HashMap<&'static str, Instant>,
    /// All of them.
    held: HashSet<Uuid>,
    /// By handler, how many are held.
    counts: HashMap<&'static str, usize>,
}

impl Streams {
    pub(crate) fn held(&self) -> &HashSet<Uuid> {
        &self.held
    }

    /// The streams of which at least as many deliveries are held.
    pub(crate) fn of_at_least(&self, many: usize) -> impl Iterator<Item = StreamKey> {
        self.behind.iter().filter(move |(_, behind)| behind.len() + 1 >= many).map(|(key, _)| *key)
    }

    pub(crate) fn count(&self, handler: &str) -> usize {
        self.counts.get(handler).copied().unwrap_or_default()
    }

    /// Adds deliveries that were claimed together.
    pub(crate) fn add(&mut self, mut claimed: Vec<Claimed>) {
        claimed.sort_by_key(|one| place(&one.delivery));
        for one in claimed {
            if self.held.insert(one.delivery.id.uuid()) {
                *self.counts.entry(one.handler.name).or_default() += 1;
            }
            match one.stream().map(|key| (key, self.behind.get_mut(&key))) {
                Some((_, Some(behind))) => behind.push_back(one),
                Some((key, None)) => {
                    self.behind.insert(key, VecDeque::new());
                    self.ready.push_back(one);
                }
                None => self.ready.push_back(one),
            }
        }
    }

    /// Hands out the next delivery whose handler is not busy and may begin another run.
    pub(crate) fn start(&mut self, now: Instant) -> Option<Started> {
        let may_begin = |one: &Claimed| {
            self.has_place(&one.handler) && self.next_of(&one.handler).is_none_or(|at| at <= now)
        };
        let at = self.ready.iter().position(may_begin)?;
        let claimed = self.ready.remove(at)?;
        *self.running.entry(claimed.handler.name).or_default() += 1;
        if let Some(rate) = claimed.handler.options.rate {
            let due = self.next_of(&claimed.handler).unwrap_or(now);
            let begun = due.max(now.checked_sub(LATE).unwrap_or(now));
            self.next.insert(claimed.handler.name, begun + rate.pause());
        }
        Some(Started { claimed, epoch: self.epoch })
    }

    /// When the next delivery may start that waits for the rate of its handler only.
    pub(crate) fn next_start(&self) -> Option<Instant> {
        let ready = self.ready.iter().map(|one| &one.handler);
        ready.filter(|handler| self.has_place(handler)).filter_map(|it| self.next_of(it)).min()
    }

    fn has_place(&self, handler: &Handler) -> bool {
        self.running.get(handler.name).copied().unwrap_or_default() < handler.options.concurrency
    }

    fn next_of(&self, handler: &Handler) -> Option<Instant> {
        self.next.get(handler.name).copied()
    }

    /// Takes back a delivery that is done. If it is not handled, returns those behind it, which are
    /// not held any more. A run of an earlier epoch says nothing of its stream.
    pub(crate) fn end(
        &mut self,
        epoch: u64,
        handler: &'static str,
        id: Uuid,
        stream: Option<StreamKey>,
        is_handled: bool,
    ) -> Vec<Claimed> {
        if let Some(running) = self.running.get_mut(handler) {
            *running = running.saturating_sub(1);
        }
        if epoch != self.epoch {
            return Vec::new();
        }
        self.forget(handler, id);
        let Some(key) = stream else { return Vec::new() };
        if !is_handled {
            let behind: Vec<Claimed> = self.behind.remove(&key).into_iter().flatten().collect();
            behind.iter().for_each(|one| self.forget(handler, one.delivery.id.uuid()));
            return behind;
        }
        match self.behind.get_mut(&key).and_then(VecDeque::pop_front) {
            Some(next) => self.ready.push_back(next),
            None => drop(self.behind.remove(&key)),
        }
        Vec::new()
    }

    /// Forgets all deliveries, because they belong to an identity that is over. Runs go on, and
    /// find out by their marks.
    pub(crate) fn begin_epoch(&mut self) {
        let (running, next) = (std::mem::take(&mut self.running), std::mem::take(&mut self.next));
        *self = Self { epoch: self.epoch + 1, running, next, ..Self::default() };
    }

    /// Takes all deliveries that are not handed out.
    pub(crate) fn take_waiting(&mut self) -> Vec<Claimed> {
        let behind = std::mem::take(&mut self.behind);
        let mut waiting: Vec<Claimed> = behind.into_values().flatten().collect();
        waiting.extend(self.ready.drain(..));
        waiting.iter().for_each(|one| self.forget(one.handler.name, one.delivery.id.uuid()));
        waiting
    }

    fn forget(&mut self, handler: &'static str, id: Uuid) {
        if self.held.remove(&id)
            && let Some(count) = self.counts.get_mut(handler)
        {
            *count = count.saturating_sub(1);
        }
    }
}
