//! One round on one shard: gives deliveries to events that lack them, and claims what is due.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{Delivery, DeliveryState, Subscriptions};
use ekbatan_core::domain::Stored;
use ekbatan_core::repository::{Direction, PageRequest, Repository};
use ekbatan_core::shard::Shard;
use uuid::Uuid;

use crate::claim::{BEHIND_PARKED, Claimed, Claims};
use crate::error::EventsError;
use crate::handler_set::HandlerSet;
use crate::membership::release;
use crate::options::Order;

/// How many events a round gives their deliveries.
const SWEPT: usize = 2_000;

/// How many rows a check looks at.
const CHECKED: usize = 256;

/// What a round needs to know.
pub(crate) struct Poll {
    pub(crate) shard: Shard,
    pub(crate) deliveries: Repository<Delivery>,
    pub(crate) handlers: HandlerSet,
    pub(crate) subscriptions: Arc<Subscriptions>,
    pub(crate) node: Uuid,
    pub(crate) held: HashSet<Uuid>,
    /// How many deliveries each handler has room for.
    pub(crate) room: HashMap<&'static str, usize>,
    pub(crate) now: DateTime<Utc>,
    /// Whether rows are checked that nobody would find otherwise.
    pub(crate) checks: bool,
}

/// What a round has found.
pub(crate) struct Polled {
    pub(crate) claimed: Vec<Claimed>,
    /// Whether the next round may find something at once.
    pub(crate) is_busy: bool,
}

impl Poll {
    pub(crate) async fn run(self) -> Result<Polled, EventsError> {
        if self.checks {
            self.release_unheld().await?;
            self.check_blocked().await?;
        }
        let claims = Claims {
            shard: &self.shard,
            deliveries: &self.deliveries,
            handlers: &self.handlers,
            node: self.node,
            held: &self.held,
        };
        let mut candidates = claims.candidates(&self.room, self.now).await?;
        // Every event that was committed before a candidate has its deliveries after this sweep, so
        // none of them is overtaken.
        let swept = self.shard.sweep(&self.subscriptions, SWEPT).await?;
        candidates.retain(|(handler, _)| {
            let since = self.subscriptions.since(handler.name);
            handler.options.order == Order::None
                || since.is_some_and(|since| since <= swept.complete)
        });
        let claimed = claims.claim(candidates, self.now).await?;
        let is_busy = swept.events > 0 || !claimed.is_empty();
        Ok(Polled { claimed, is_busy })
    }

    /// Releases deliveries that this node has claimed and does not hold: the answer to the claim or
    /// to the release was lost.
    async fn release_unheld(&self) -> Result<(), EventsError> {
        let own = Delivery::STATE.eq(DeliveryState::Claimed) & Delivery::NODE.eq(self.node);
        loop {
            let request = PageRequest::first(CHECKED).filter(own.clone());
            let mut rows = self.deliveries.page(request).await?.rows;
            let is_full = rows.len() == CHECKED;
            rows.retain(|row| !self.held.contains(&row.id.uuid()));
            let is_last = !is_full || rows.is_empty();
            for row in rows {
                release(&self.deliveries, row, self.now).await?;
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Releases blocked deliveries whose stream has no parked one any more. The process that
    /// retried or skipped that one may have died before it released them.
    async fn check_blocked(&self) -> Result<(), EventsError> {
        let due = Delivery::STATE.eq(DeliveryState::Blocked) & Delivery::DUE.le(self.now);
        let request = PageRequest::first(CHECKED).filter(due);
        let rows =
            self.deliveries.page(request.order_by(Delivery::DUE, Direction::Ascending)).await?;
        for row in rows.rows {
            if self.is_blocked(&row).await? {
                let later = row.apply(|row| row.due = self.now + BEHIND_PARKED);
                match self.deliveries.update(later).await.map_err(EventsError::from) {
                    Err(error) if !error.is_stale() => return Err(error),
                    _ => {}
                }
            } else {
                release(&self.deliveries, row, self.now).await?;
            }
        }
        Ok(())
    }

    async fn is_blocked(&self, row: &Stored<Delivery>) -> Result<bool, EventsError> {
        let parked = Delivery::STREAM.eq(row.stream)
            & Delivery::HANDLER.eq(row.handler.clone())
            & Delivery::STATE.eq(DeliveryState::Parked);
        Ok(self.deliveries.exists_where(parked).await?)
    }
}
