//! One round on one shard: gives deliveries to events that lack them, and claims what is due.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{
    Claimant, Delivery, DeliveryHub, DeliveryState, Subscriptions, WantedDue,
};
use ekbatan_core::domain::{Id, Stored};
use ekbatan_core::repository::Repository;
use ekbatan_core::shard::Shard;
use futures_util::future::join_all;
use uuid::Uuid;

use crate::claims::candidates::{CandidateLook, Room};
use crate::claims::claim::{ClaimedRound, Claims};
use crate::claims::claimed::{Claimed, StreamKey};
use crate::claims::look_from::LookFrom;
use crate::claims::put_off::{behind_parked, is_parked};
use crate::claims::round_writes::{RoundWrites, WriteTerms};
use crate::claims::unheld::Unheld;
use crate::error::EventsError;
use crate::handlers::handler_set::HandlerSet;
use crate::nodes::membership::release;
use crate::nodes::registration::Registrar;
use crate::options::Order;

/// How many blocked deliveries of one name and priority a check looks at.
const CHECKED: usize = 256;

/// How many deliveries of a node a check looks at, more than it holds.
const CLAIMED: usize = 100_000;

/// What a round needs to know.
pub(crate) struct Poll {
    pub(crate) shard: Shard,
    pub(crate) deliveries: Repository<Delivery>,
    pub(crate) handlers: HandlerSet,
    pub(crate) registrar: Registrar,
    pub(crate) hub: Arc<DeliveryHub>,
    pub(crate) subscriptions: Arc<Subscriptions>,
    pub(crate) node: Uuid,
    pub(crate) held: HashSet<Uuid>,
    /// By handler, the models whose streams the round skips.
    pub(crate) passed_over: HashMap<&'static str, Vec<Uuid>>,
    /// How many deliveries each handler has room for.
    pub(crate) room: HashMap<&'static str, Room>,
    pub(crate) now: DateTime<Utc>,
    /// Whether rows are checked that nobody would find otherwise.
    pub(crate) checks: bool,
    pub(crate) unheld: Unheld,
    pub(crate) look_from: LookFrom,
    pub(crate) terms: WriteTerms,
    /// How many new deliveries of one priority the round claims at most, and how many others.
    pub(crate) claimed_at_once: usize,
    /// To how many events the round gives their deliveries at most.
    pub(crate) swept_at_once: usize,
}

/// What a round has found.
pub(crate) struct Polled {
    pub(crate) claimed: Vec<Claimed>,
    /// The streams that other nodes handle, and those with a locked row.
    pub(crate) elsewhere: HashSet<StreamKey>,
    /// Whether the next round may find something at once.
    pub(crate) is_busy: bool,
    /// Whether the round has left something to do that the next one finds.
    pub(crate) left_rows: bool,
    /// How the writes of the next round are made.
    pub(crate) terms: WriteTerms,
    pub(crate) unheld: Unheld,
    pub(crate) look_from: LookFrom,
}

impl Poll {
    pub(crate) async fn run(mut self) -> Result<Polled, EventsError> {
        let mut left_rows = false;
        if self.checks {
            let shard = self.shard.clone();
            let writes = RoundWrites::begin(&shard, self.terms);
            self.release_unheld(&writes).await?;
            self.check_blocked(&writes).await?;
            left_rows = writes.left_rows();
            // A check writes little: what it took says nothing of the claims.
            self.terms.careful_as(writes.end());
        }
        let look = CandidateLook {
            shard: &self.shard,
            deliveries: &self.deliveries,
            handlers: &self.handlers,
            node: self.node,
            held: &self.held,
            passed_over: &self.passed_over,
            at_once: self.claimed_at_once,
            finds_all: self.checks,
        };
        let mut candidates = Vec::new();
        if let Some(due) = look.candidates(&self.room, self.now, &mut self.look_from).await? {
            candidates = due.found;
            // A handler may have another name by now, under which earlier events have deliveries.
            if due.generation > self.subscriptions.generation() {
                self.subscriptions = self.registrar.present(&self.hub).await?;
            }
        }
        // Every event that was committed before a candidate has its deliveries after this sweep, so
        // none of them is overtaken.
        let swept = self.shard.sweep(&self.subscriptions, self.swept_at_once).await;
        let swept = swept.map_err(EventsError::of_transaction)?;
        if swept.events > 0 {
            // Their deliveries are due since the dates of the events.
            self.look_from.forget();
        }
        candidates.retain(|(handler, row)| {
            let can_follow = |since| {
                // The commits that enqueued calls have given them their deliveries.
                handler.is_of_calls()
                    || (since <= swept.complete && !swept.elsewhere.contains(&row.stream))
            };
            handler.options.order == Order::None
                || self.subscriptions.since(handler.name).is_some_and(can_follow)
        });
        let claims = Claims {
            shard: &self.shard,
            deliveries: &self.deliveries,
            handlers: &self.handlers,
            node: self.node,
            held: &self.held,
            terms: self.terms,
        };
        let round = claims.claim(candidates, self.now).await?;
        let is_busy = swept.events > 0 || !round.claimed.is_empty() || round.put_off > 0;
        let ClaimedRound { claimed, elsewhere, terms, .. } = round;
        let Self { unheld, look_from, .. } = self;
        let left_rows = left_rows || round.left_rows;
        Ok(Polled { claimed, elsewhere, is_busy, left_rows, terms, unheld, look_from })
    }

    /// Releases deliveries that this node has claimed and does not hold.
    async fn release_unheld(&mut self, writes: &RoundWrites<'_>) -> Result<(), EventsError> {
        self.unheld.begin();
        let mut ids = self.shard.claimed(Claimant::Node(self.node), CLAIMED).await?;
        ids.retain(|id| !self.held.contains(id) && self.unheld.is_lost(*id));
        let ids: Vec<_> = ids.into_iter().map(Id::from_uuid).collect();
        let rows = self.deliveries.find_by_ids(&ids).await?;
        let locked = writes.locked(rows.iter()).await?;
        let is_ours =
            |row: &Stored<Delivery>| row.state == DeliveryState::Claimed && row.node == self.node;
        let releases = rows
            .into_iter()
            .filter(|row| is_ours(row) && !locked.contains(&row.id.uuid()))
            .map(|row| writes.answer(release(&self.deliveries, row, self.now)));
        join_all(releases).await.into_iter().try_for_each(|released| released.map(drop))
    }

    /// Releases blocked deliveries whose stream has no parked one any more. The process that
    /// retried or skipped that one may have died before it released them.
    async fn check_blocked(&self, writes: &RoundWrites<'_>) -> Result<(), EventsError> {
        let questions = self.handlers.names().flat_map(|(handler, of)| {
            of.priorities.iter().map(move |priority| WantedDue {
                state: DeliveryState::Blocked,
                handler,
                priority: *priority,
                except: Vec::new(),
                from: None,
            })
        });
        let wanted: Vec<_> = questions.collect();
        let due = self.shard.due(&wanted, self.now, CHECKED).await?;
        let ids: Vec<_> = due.deliveries.into_iter().flatten().map(Id::from_uuid).collect();
        let mut rows = self.deliveries.find_by_ids(&ids).await?;
        rows.retain(|row| row.state == DeliveryState::Blocked);
        let locked = writes.locked(rows.iter()).await?;
        rows.retain(|row| !locked.contains(&row.id.uuid()));
        // Many may be blocked behind one, so each stream is asked once.
        let streams: HashSet<_> =
            rows.iter().map(|row| (row.stream, row.handler.clone())).collect();
        let asked = streams.into_iter().map(|(stream, handler)| async move {
            let is_blocked = self.is_blocked(stream, &handler).await?;
            Ok::<_, EventsError>(((stream, handler), is_blocked))
        });
        let mut blocked = HashSet::new();
        for answer in join_all(asked).await {
            let (stream, is_blocked) = answer?;
            if is_blocked {
                blocked.insert(stream);
            }
        }
        let checks = rows.into_iter().map(|row| async {
            let stream = (row.stream, row.handler.clone());
            if blocked.contains(&stream) {
                writes.answer(self.check_later(row)).await.map(drop)
            } else {
                writes.answer(release(&self.deliveries, row, self.now)).await.map(drop)
            }
        });
        join_all(checks).await.into_iter().collect()
    }

    async fn is_blocked(&self, stream: Uuid, handler: &str) -> Result<bool, EventsError> {
        let Some(handler) = self.handlers.get(handler) else { return Ok(true) };
        if handler.options.order == Order::None {
            // An earlier release had an order.
            return Ok(false);
        }
        is_parked(&self.deliveries, stream, handler.names()).await
    }

    async fn check_later(&self, row: Stored<Delivery>) -> Result<(), EventsError> {
        let Some(handler) = self.handlers.get(&row.handler) else { return Ok(()) };
        let later = row.apply(|row| row.due = self.now + behind_parked(handler));
        match self.deliveries.update(later).await.map_err(EventsError::from) {
            Err(error) if !error.is_stale() => Err(error),
            _ => Ok(()),
        }
    }
}
