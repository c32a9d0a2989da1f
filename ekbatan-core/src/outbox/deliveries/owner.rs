//! A node of this process, as the commits of its executor see it: it takes deliveries as claimed
//! that they are about to insert.
//!
//! A commit *reserves* room before it inserts deliveries that the node claims, and *hands them
//! over* once they are committed. The node may have changed in between: then it returns them to
//! the database, where they wait for any node.
//!
//! Invariant: the deliveries that were handed over and that the worker has not taken yet count as
//! held. So whoever forgets a stream takes them away, too.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use uuid::Uuid;

use super::known_streams::{KnownStreams, ModelVersion};
use super::{Delivery, PriorityCounts, StoredEvent};
use crate::domain::Stored;
use crate::outbox::Priority;

/// A delivery that was committed as claimed, with its event.
#[derive(Debug)]
pub struct Born {
    /// The delivery, as it was inserted.
    pub delivery: Stored<Delivery>,
    /// The event.
    pub event: StoredEvent,
}

/// A handler of a node.
#[derive(Debug)]
pub struct OwnedHandler {
    /// The stored name.
    pub name: &'static str,
    /// The generation from which on it has all of its subscriptions.
    pub since: Option<i64>,
    /// Whether the deliveries of one model are handled one after another.
    pub is_ordered: bool,
    /// How many deliveries of one priority the node may hold for it, for commits to give it more.
    pub most: usize,
    /// Whether the node claims nothing for it at present.
    pub paused: Arc<AtomicBool>,
    /// Whether it takes nothing until it is [opened](DeliveryOwner::open_handler).
    pub begins_closed: bool,
}

/// What the commits of an executor have given to a node.
#[derive(Debug, Default)]
pub struct Arrived {
    /// Deliveries that the node holds now.
    pub born: Vec<Born>,
    /// Deliveries that are committed as claimed by the node and that it does not hold.
    pub returned: Vec<Stored<Delivery>>,
}

/// A node on one shard, as commits see it.
#[derive(Debug)]
pub struct DeliveryOwner {
    handlers: Vec<OwnedHandler>,
    by_name: HashMap<&'static str, usize>,
    state: Mutex<OwnerState>,
    changed: Notify,
}

#[derive(Debug)]
struct OwnerState {
    /// The node's identity. Without one it takes nothing.
    node: Option<Uuid>,
    /// Whether the node ends.
    is_closed: bool,
    streams: KnownStreams,
    /// By handler, how many deliveries the worker holds.
    held: Vec<PriorityCounts>,
    /// By handler, how many deliveries are reserved, or handed over and not taken yet.
    reserved: Vec<PriorityCounts>,
    /// By handler, whether it takes nothing at present.
    closed: Vec<bool>,
    arrived: Arrived,
}

/// Room for the deliveries of one version, in a node that takes them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reserved {
    /// The node's identity.
    pub(super) node: Uuid,
    handler: usize,
    of: ModelVersion,
    counts: PriorityCounts,
}

impl DeliveryOwner {
    pub(super) fn new(node: Uuid, handlers: Vec<OwnedHandler>) -> Self {
        let by_name = handlers.iter().enumerate().map(|(at, handler)| (handler.name, at)).collect();
        let state = OwnerState {
            node: Some(node),
            is_closed: false,
            streams: KnownStreams::default(),
            held: vec![PriorityCounts::default(); handlers.len()],
            reserved: vec![PriorityCounts::default(); handlers.len()],
            closed: handlers.iter().map(|handler| handler.begins_closed).collect(),
            arrived: Arrived::default(),
        };
        Self { handlers, by_name, state: Mutex::new(state), changed: Notify::new() }
    }

    /// The identity under which commits claim deliveries.
    pub fn node(&self) -> Option<Uuid> {
        self.state().node
    }

    /// Begins to claim under an identity, or ends to claim. Nothing is known of any stream then.
    pub fn begin_epoch(&self, node: Option<Uuid>) {
        let mut state = self.state();
        state.node = node;
        state.streams.clear();
        let born = std::mem::take(&mut state.arrived.born);
        for one in born {
            self.unreserve(&mut state, &one.delivery);
            state.arrived.returned.push(one.delivery);
        }
    }

    /// Lets a handler take deliveries again.
    pub fn open_handler(&self, handler: &str) {
        self.set_closed(handler, false);
    }

    /// Reserves nothing more for a handler, until it is opened.
    pub fn close_handler(&self, handler: &str) {
        self.set_closed(handler, true);
    }

    fn set_closed(&self, handler: &str, is_closed: bool) {
        let Some(at) = self.at(handler) else { return };
        if let Some(closed) = self.state().closed.get_mut(at) {
            *closed = is_closed;
        }
    }

    /// Reserves nothing more.
    pub fn close(&self) {
        self.state().is_closed = true;
    }

    /// Waits until there is something to take, or something that was in flight has ended.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes what was handed over.
    pub fn take(&self) -> Arrived {
        let mut state = self.state();
        let arrived = std::mem::take(&mut state.arrived);
        for one in &arrived.born {
            self.unreserve(&mut state, &one.delivery);
            if let Some(held) = self.at(&one.delivery.handler).and_then(|at| state.held.get_mut(at))
            {
                *held += PriorityCounts::one(one.delivery.priority);
            }
        }
        arrived
    }

    /// How many deliveries are reserved, or handed over and not taken yet.
    pub fn in_flight(&self) -> usize {
        self.state().reserved.iter().map(|counts| counts.all()).sum()
    }

    /// Says how many deliveries the worker holds, by the name of the handler.
    pub fn set_held(&self, count: impl Fn(&str) -> PriorityCounts) {
        let mut state = self.state();
        for (held, handler) in state.held.iter_mut().zip(&self.handlers) {
            *held = count(handler.name);
        }
    }

    /// How many more deliveries of a handler and a priority the node may hold, if it holds `most` of
    /// one priority.
    pub fn room(&self, handler: &str, priority: Priority, most: usize) -> usize {
        self.at(handler).map_or(0, |at| self.state().taken(at).room(priority, most))
    }

    /// Says that the worker holds a delivery of a handler's stream that it has claimed.
    pub fn claimed(&self, handler: &str, delivery: &Stored<Delivery>) {
        if let Some(at) = self.ordered(handler) {
            let (stream, version) = (delivery.stream, delivery.model_version);
            self.state().streams.claimed(at, stream, version, delivery.id.uuid());
        }
    }

    /// Says that a delivery of a stream is handled.
    pub fn handled(&self, handler: &str, stream: Uuid) {
        if let Some(at) = self.ordered(handler) {
            self.state().streams.handled(at, stream);
        }
    }

    /// Says that a delivery of a stream is not handled. Returns those behind it that were handed
    /// over meanwhile; the node does not hold them any more.
    pub fn forget(&self, handler: &str, stream: Uuid) -> Vec<Born> {
        let Some(at) = self.ordered(handler) else { return Vec::new() };
        let mut state = self.state();
        state.streams.forget(at, stream);
        let is_behind =
            |one: &mut Born| one.delivery.stream == stream && one.delivery.handler == handler;
        let behind: Vec<Born> = state.arrived.born.extract_if(.., is_behind).collect();
        if let Some(reserved) = state.reserved.get_mut(at) {
            *reserved -= PriorityCounts::of(behind.iter().map(|one| one.delivery.priority));
        }
        behind
    }

    /// Reserves room for the deliveries of a version, if they may start without a look at the
    /// database. `since` is the generation from which on the commit knows all subscriptions of the
    /// handler.
    pub(super) fn reserve(
        &self,
        since: Option<i64>,
        handler: &str,
        of: ModelVersion,
        counts: PriorityCounts,
    ) -> Option<Reserved> {
        let at = self.at(handler)?;
        let of_handler = self.handlers.get(at)?;
        if !of_handler.has_all(since) || of_handler.paused.load(Ordering::Relaxed) {
            return None;
        }
        let mut state = self.state();
        let node = state.node.filter(|_| !state.is_closed)?;
        if state.closed.get(at).is_some_and(|is_closed| *is_closed)
            || !state.taken(at).has_room_for(counts, of_handler.most)
            || (of_handler.is_ordered && !state.streams.expect(at, of, counts.all()))
        {
            return None;
        }
        *state.reserved.get_mut(at)? += counts;
        Some(Reserved { node, handler: at, of, counts })
    }

    /// Gives reserved room back: the deliveries are not committed, or nothing is known of them.
    pub(super) fn give_up(&self, Reserved { handler, of, counts, .. }: Reserved) {
        let mut state = self.state();
        state.streams.give_up(handler, of, counts.all());
        if let Some(of_handler) = state.reserved.get_mut(handler) {
            *of_handler -= counts;
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Hands over the deliveries of a version that are committed. What the reservation relied on
    /// must hold still: a run may have failed, or the node's identity may be another one.
    pub(super) fn hand_over(&self, reserved: Reserved, born: Vec<Born>) {
        let Reserved { node, handler, of, counts } = reserved;
        let is_ordered = self.handlers.get(handler).is_some_and(|handler| handler.is_ordered);
        let mut state = self.state();
        let is_taken = state.node == Some(node)
            && !state.is_closed
            && (!is_ordered || state.streams.hold(handler, of, counts.all()));
        if is_taken {
            state.arrived.born.extend(born);
        } else {
            state.arrived.returned.extend(born.into_iter().map(|one| one.delivery));
            if let Some(of_handler) = state.reserved.get_mut(handler) {
                *of_handler -= counts;
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Takes note of a version that was committed with deliveries that nobody owns.
    pub(super) fn await_claims(
        &self,
        since: Option<i64>,
        handler: &str,
        of: ModelVersion,
        ids: Vec<Uuid>,
    ) {
        let all_subscribed =
            |at: &usize| self.handlers.get(*at).is_some_and(|of| of.has_all(since));
        if let Some(at) = self.ordered(handler).filter(all_subscribed) {
            self.state().streams.await_claims(at, of, ids);
        }
    }

    /// Takes note of committed versions. `has` tells of which of them a handler has a delivery.
    pub(super) fn pass(
        &self,
        since: impl Fn(&str) -> Option<i64>,
        versions: &[ModelVersion],
        has: impl Fn(&str, &ModelVersion) -> bool,
    ) {
        if versions.is_empty() {
            return;
        }
        let mut state = self.state();
        for (at, handler) in self.handlers.iter().enumerate().filter(|(_, of)| of.is_ordered) {
            if handler.has_all(since(handler.name)) {
                for of in versions.iter().filter(|of| !has(handler.name, of)) {
                    state.streams.pass(at, *of);
                }
            }
        }
    }

    fn at(&self, handler: &str) -> Option<usize> {
        self.by_name.get(handler).copied()
    }

    fn ordered(&self, handler: &str) -> Option<usize> {
        self.at(handler).filter(|at| self.handlers.get(*at).is_some_and(|of| of.is_ordered))
    }

    fn unreserve(&self, state: &mut OwnerState, delivery: &Delivery) {
        if let Some(reserved) = self.at(&delivery.handler).and_then(|at| state.reserved.get_mut(at))
        {
            *reserved -= PriorityCounts::one(delivery.priority);
        }
    }

    fn state(&self) -> MutexGuard<'_, OwnerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OwnedHandler {
    /// Whether a commit gives the handler all deliveries, and would have given it all of earlier
    /// versions: otherwise the sweep may insert some between.
    fn has_all(&self, since: Option<i64>) -> bool {
        since.is_some() && since == self.since
    }
}

impl OwnerState {
    /// What the node holds, or is going to hold.
    fn taken(&self, handler: usize) -> PriorityCounts {
        let of = |counts: &[PriorityCounts]| counts.get(handler).copied().unwrap_or_default();
        of(&self.held) + of(&self.reserved)
    }
}

#[cfg(test)]
mod tests;
