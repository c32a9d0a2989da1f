//! What an operator does with a handler: pauses and resumes it on all nodes, and retires it.

use std::collections::{BTreeSet, HashSet};

use ekbatan_core::__private::deliveries::{
    Delivery, DeliveryState, Subscription, SubscriptionState,
};
use ekbatan_core::domain::{New, Stored};
use ekbatan_core::repository::PageRequest;

use crate::dead_letter::DeadLetter;
use crate::error::EventsError;
use crate::intervention::{InterventionKind, Operator};
use crate::nodes::registration::Registrar;
use crate::operations::deliveries::DeliveryOperations;

/// How many deliveries one transaction moves.
const CHUNK: usize = 256;

/// How many events one transaction gives their deliveries.
const SWEPT: usize = 256;

impl DeliveryOperations {
    /// Lets no node claim events for a handler until it is [resumed](Self::resume). Its events go
    /// on getting deliveries, which wait. Each node learns of it within a fifth of its lease, 3 s
    /// by default, and handles what it has claimed before. Refused if the handler is retired or has another name by
    /// now.
    pub async fn pause(&self, handler: &str, who: &str, why: &str) -> Result<(), EventsError> {
        self.change(handler, InterventionKind::Pause, Operator::new(who, why)?).await
    }

    /// Ends a pause. Each node learns of it within a fifth of its lease.
    pub async fn resume(&self, handler: &str, who: &str, why: &str) -> Result<(), EventsError> {
        self.change(handler, InterventionKind::Resume, Operator::new(who, why)?).await
    }

    /// Retires a handler that no node has any more: its events get no deliveries, and those that
    /// are still to be handled move to the dead letters as skipped. So do the enqueued calls of an
    /// action that no node has registered. Before that, events without deliveries get theirs. Returns how
    /// many moved.
    ///
    /// A process may insert some more until it learns of it, within a fifth of its lease. Call it
    /// once more afterwards: that moves them. [`status`](Self::status) shows whether there are any.
    ///
    /// A node that registers the handler again ends this. It then gets the events since the
    /// handler was retired, or those from now on if its options say so. Events that got a delivery
    /// nevertheless get no second one.
    pub async fn retire(&self, handler: &str, who: &str, why: &str) -> Result<u64, EventsError> {
        let operator = Operator::new(who, why)?;
        // An action whose calls are enqueued has deliveries also if no node has registered it.
        if self.pending(handler).await? == 0 {
            self.subscriptions_of(handler).await?;
        }
        let now = self.databases.clock().now();
        self.deliver_what_lacks().await?;
        let log = || operator.did(InterventionKind::Retire, handler, "all nodes".to_owned(), now);
        Registrar::new(&self.databases, &self.shard).retire(handler, now, log).await?;
        let (mut moved, mut unparked) = (0, HashSet::new());
        loop {
            let of_handler = Delivery::HANDLER.eq(handler);
            let request = PageRequest::first(CHUNK).filter(of_handler);
            let rows = self.deliveries.page(request).await?.rows;
            if rows.is_empty() {
                break;
            }
            let parked = rows.iter().filter(|row| row.state == DeliveryState::Parked);
            unparked.extend(parked.map(|row| row.stream));
            moved += self.move_away(rows, operator).await?;
        }
        // Those of a later name of the handler may wait there.
        for stream in unparked {
            self.release_behind(stream).await?;
        }
        Ok(moved)
    }

    /// Gives deliveries to the events that lack some. If the handler comes back, it gets the events since it was
    /// retired: what has no delivery by then, it would never get.
    async fn deliver_what_lacks(&self) -> Result<(), EventsError> {
        let subscriptions = Registrar::new(&self.databases, &self.shard).read().await?;
        loop {
            let swept = self.shard.sweep(&subscriptions, SWEPT).await;
            let swept = swept.map_err(EventsError::of_transaction)?;
            if swept.events == 0 || swept.complete >= subscriptions.generation() {
                return Ok(());
            }
        }
    }

    /// Moves deliveries to the dead letters. Returns 0 if one of them is not as it was read.
    async fn move_away(
        &self,
        rows: Vec<Stored<Delivery>>,
        operator: Operator<'_>,
    ) -> Result<u64, EventsError> {
        let (count, now) = (rows.len() as u64, self.databases.clock().now());
        let moving = |transaction| async move {
            let letters = rows.iter().map(|row| DeadLetter::skipped(row, operator, now));
            let letters: Vec<_> = letters.map(|letter| New::new(letter, ())).collect();
            self.deliveries.within(&transaction).erase_all(rows).await?;
            self.dead_letters.within(&transaction).add_all(letters).await?;
            Ok::<_, EventsError>(())
        };
        match self.shard.transactions().in_transaction(moving).await.map_err(EventsError::from) {
            Ok(()) => Ok(count),
            // A node has claimed or handled one of them.
            Err(error) if error.is_stale() => {
                tokio::task::yield_now().await;
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    async fn change(
        &self,
        handler: &str,
        kind: InterventionKind,
        operator: Operator<'_>,
    ) -> Result<(), EventsError> {
        let subscriptions = self.subscriptions_of(handler).await?;
        if subscriptions.iter().all(|row| !row.state.is_subscribed()) {
            let mut present = Registrar::new(&self.databases, &self.shard).all().await?;
            present.retain(|row| row.state.is_subscribed());
            return Err(EventsError::FormerHandler {
                handler: handler.to_owned(),
                shard: self.shard.identifier(),
                present: names_of(&present),
            });
        }
        let now = self.databases.clock().now();
        let change = |row: &mut Subscription| match (kind, row.state) {
            (InterventionKind::Pause, SubscriptionState::Active) => {
                row.state = SubscriptionState::Paused;
            }
            (InterventionKind::Resume, SubscriptionState::Paused) => {
                row.state = SubscriptionState::Active;
            }
            _ => {}
        };
        let log = || operator.did(kind, handler, "all nodes".to_owned(), now);
        Registrar::new(&self.databases, &self.shard).change(handler, change, log).await
    }

    /// Fails if an operator has retired the handler. One that has another name by now handles under that name
    /// what is delivered to the earlier one.
    pub(crate) async fn check_not_retired(&self, handler: &str) -> Result<(), EventsError> {
        let mut rows = Registrar::new(&self.databases, &self.shard).all().await?;
        rows.retain(|row| row.handler == handler);
        if !rows.is_empty() && rows.iter().all(|row| row.state == SubscriptionState::Withdrawn) {
            let (handler, shard) = (handler.to_owned(), self.shard.identifier());
            return Err(EventsError::RetiredHandler { handler, shard });
        }
        Ok(())
    }

    /// The subscriptions of a handler. Fails if there are none.
    pub(crate) async fn subscriptions_of(
        &self,
        handler: &str,
    ) -> Result<Vec<Subscription>, EventsError> {
        let mut all = Registrar::new(&self.databases, &self.shard).all().await?;
        if all.iter().all(|row| row.handler != handler) {
            return Err(EventsError::UnknownHandler {
                handler: handler.to_owned(),
                shard: self.shard.identifier(),
                known: names_of(&all),
            });
        }
        all.retain(|row| row.handler == handler);
        Ok(all)
    }
}

/// The handlers of subscriptions, as a list in words.
fn names_of(subscriptions: &[Subscription]) -> String {
    let names: BTreeSet<String> =
        subscriptions.iter().map(|row| format!("`{}`", row.handler)).collect();
    if names.is_empty() {
        return "none".to_owned();
    }
    names.into_iter().collect::<Vec<_>>().join(", ")
}
