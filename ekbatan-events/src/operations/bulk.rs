//! What an operator does with many dead letters or events at a time: counts, replays, purges.
//!
//! Invariants: what is done is done with exactly the rows that were found when it began, and only
//! if they are as many as the operator has counted. Each transaction changes some of them and adds
//! their number to the row of the intervention.

use ekbatan_core::__private::deliveries::{Delivery, StoredPlace};
use ekbatan_core::domain::{Id, New, Stored};
use uuid::Uuid;

use crate::dead_letter::{DeadLetter, DeadLetterState};
use crate::delivery_filter::{DeliveryFilter, Selected};
use crate::error::EventsError;
use crate::failure;
use crate::intervention::{Intervention, InterventionKind, InterventionState, Operator};
use crate::operations::deliveries::DeliveryOperations;
use crate::operations::filtered_rows::{FoundLetter, letters_of, selects};

/// How many rows one transaction changes.
const CHUNK: usize = 256;

impl DeliveryOperations {
    /// How many dead letters or stored events a filter selects.
    ///
    /// Of stored events it reads the whole table once, in pages.
    pub async fn count(&self, filter: &DeliveryFilter) -> Result<u64, EventsError> {
        Ok(match filter.of {
            Selected::StoredEvents => self.find_events(filter).await?.len() as u64,
            _ if filter.names_events() => self.find_letters(filter).await?.len() as u64,
            _ => self.dead_letters.count_where(letters_of(filter)).await?,
        })
    }

    /// Delivers what a filter selects to its handler once more, and returns how many that were.
    /// Fails with [`EventsError::Recount`] and changes nothing if the filter does not select as
    /// many rows as were counted, and with [`EventsError::RetiredHandler`] if the handler is retired.
    /// Dead letters that somebody else settles meanwhile are left out, and so are events that were
    /// deleted, and those that the handler still has to handle.
    ///
    /// The events of one model are handled in their order among each other, but not with those
    /// that were handled since. Each delivery is new, also to the steps of the handler. An event
    /// that is older than the handler's `max_age` is tried up to ten times.
    ///
    /// ```
    /// # use ekbatan_events::{DeliveryFilter, DeliveryOperations, EventsError};
    /// # async fn run(operations: &DeliveryOperations) -> Result<(), EventsError> {
    /// let filter = DeliveryFilter::dead_letters("mail.send").event_type("WalletOpened");
    /// let counted = operations.count(&filter).await?;
    /// operations.replay_all(&filter, counted, "alice", "the mail server is back").await?;
    /// # Ok(()) }
    /// ```
    pub async fn replay_all(
        &self,
        filter: &DeliveryFilter,
        counted: u64,
        who: &str,
        why: &str,
    ) -> Result<u64, EventsError> {
        let operator = Operator::new(who, why)?;
        match filter.of {
            Selected::StoredEvents => {
                let mut places = self.find_events(filter).await?;
                let found = places.len();
                let mut log =
                    self.begin(InterventionKind::Replay, filter, counted, found, operator).await?;
                // A stream's earlier versions are there before its later ones are claimed.
                places.sort_by_key(|of| of.place);
                for chunk in places.chunks(CHUNK) {
                    log = self.replay_events(log, filter, chunk, operator).await?;
                }
                self.end(log).await
            }
            _ => {
                let mut letters = self.find_letters(filter).await?;
                let found = letters.len();
                let mut log =
                    self.begin(InterventionKind::Replay, filter, counted, found, operator).await?;
                letters.sort_by_key(|letter| letter.place);
                // An event may have several letters. One delivery is enough.
                letters.dedup_by_key(|letter| letter.place.event_id);
                for chunk in letters.chunks(CHUNK) {
                    log = self.change_letters(log, filter, chunk, Change::Replay(operator)).await?;
                }
                self.end(log).await
            }
        }
    }

    /// Deletes the dead letters that a filter selects, and returns how many that were. The events
    /// stay. Fails with [`EventsError::Recount`] and changes nothing if the filter does not select
    /// as many rows as were counted.
    pub async fn purge(
        &self,
        filter: &DeliveryFilter,
        counted: u64,
        who: &str,
        why: &str,
    ) -> Result<u64, EventsError> {
        let operator = Operator::new(who, why)?;
        if filter.of == Selected::StoredEvents {
            let why = "selects stored events, which are not purged; select dead letters";
            return Err(EventsError::Unfit { what: "filter", why: why.to_owned() });
        }
        let letters = self.find_letters(filter).await?;
        let mut log =
            self.begin(InterventionKind::Purge, filter, counted, letters.len(), operator).await?;
        for chunk in letters.chunks(CHUNK) {
            log = self.change_letters(log, filter, chunk, Change::Purge).await?;
        }
        self.end(log).await
    }

    /// Stores that something begins, if it is what was counted and somebody would handle what is replayed.
    async fn begin(
        &self,
        kind: InterventionKind,
        filter: &DeliveryFilter,
        counted: u64,
        found: usize,
        operator: Operator<'_>,
    ) -> Result<Stored<Intervention>, EventsError> {
        if found as u64 != counted {
            return Err(EventsError::Recount {
                filter: filter.to_string(),
                counted,
                found: found as u64,
                shard: self.shard.identifier(),
            });
        }
        if kind == InterventionKind::Replay && found > 0 {
            self.check_not_retired(&filter.handler).await?;
        }
        let now = self.databases.clock().now();
        let row = operator.begins(kind, &filter.handler, filter.to_string(), found, now);
        Ok(self.interventions.add(row).await?)
    }

    async fn end(&self, log: Stored<Intervention>) -> Result<u64, EventsError> {
        let ended = log.apply(|row| row.state = InterventionState::Done);
        Ok(self.interventions.update(ended).await?.done.unsigned_abs())
    }

    async fn replay_events(
        &self,
        log: Stored<Intervention>,
        filter: &DeliveryFilter,
        chunk: &[StoredPlace],
        operator: Operator<'_>,
    ) -> Result<Stored<Intervention>, EventsError> {
        let now = self.databases.clock().now();
        let note = failure::shorten(&format!("replayed by {}: {}", operator.who, operator.why));
        let events: Vec<Uuid> = chunk.iter().map(|of| of.place.event_id).collect();
        let replaying = |transaction| async move {
            // Before their deliveries are there, so that no retention deletes them meanwhile.
            let kept = self.shard.keep_events(&transaction, events).await?;
            let places = chunk.iter().map(|of| of.place);
            let places = places.filter(|place| kept.contains(&place.event_id));
            let again = |place| {
                New::new(Delivery::once_more(&filter.handler, place, note.clone(), now), ())
            };
            let deliveries: Vec<_> = places.map(again).collect();
            let log = count_in(log, deliveries.len());
            self.deliveries.within(&transaction).add_all(deliveries).await?;
            Ok::<_, EventsError>(self.interventions.within(&transaction).update(log).await?)
        };
        Ok(self.shard.transactions().in_transaction(replaying).await?)
    }

    /// Replays or deletes some letters. Those that somebody else has settled meanwhile are left as
    /// they are.
    async fn change_letters(
        &self,
        log: Stored<Intervention>,
        filter: &DeliveryFilter,
        chunk: &[FoundLetter],
        change: Change<'_>,
    ) -> Result<Stored<Intervention>, EventsError> {
        let ids: Vec<Id<DeadLetter>> = chunk.iter().map(|letter| letter.id).collect();
        loop {
            let mut letters = self.dead_letters.find_by_ids(&ids).await?;
            letters.retain(|letter| selects(filter, letter.state));
            letters.sort_by_key(|letter| letter.place());
            if let Change::Replay(_) = change {
                let places = letters.iter().map(|letter| (letter.stream, letter.model_version));
                let (streams, versions) = places.unzip();
                let open = self.open_among(&filter.handler, streams, versions).await?;
                letters.retain(|letter| !open.contains(&letter.event_id));
            }
            let log = log.clone();
            let now = self.databases.clock().now();
            let working = |transaction| async move {
                let dead_letters = self.dead_letters.within(&transaction);
                if let Change::Replay(_) = change {
                    let events = letters.iter().map(|letter| letter.event_id).collect();
                    let kept = self.shard.keep_events(&transaction, events).await?;
                    letters.retain(|letter| kept.contains(&letter.event_id));
                }
                let changing = letters.len();
                match change {
                    Change::Replay(operator) => {
                        let again =
                            letters.iter().map(|row| New::new(row.delivered_again(now), ()));
                        let again: Vec<_> = again.collect();
                        let settled = letters.into_iter().map(|row| {
                            row.apply(|row| row.settle(DeadLetterState::Replayed, operator, now))
                        });
                        let settled: Vec<_> = settled.collect();
                        dead_letters.update_all(settled).await?;
                        self.deliveries.within(&transaction).add_all(again).await?;
                    }
                    Change::Purge => dead_letters.erase_all(letters).await?,
                }
                let log = count_in(log, changing);
                Ok::<_, EventsError>(self.interventions.within(&transaction).update(log).await?)
            };
            let worked = self.shard.transactions().in_transaction(working).await;
            match worked.map_err(EventsError::from) {
                // Somebody has settled one of them since it was read.
                Err(error) if error.is_stale() => tokio::task::yield_now().await,
                worked => return worked,
            }
        }
    }
}

/// What becomes of letters.
#[derive(Clone, Copy)]
enum Change<'o> {
    Replay(Operator<'o>),
    Purge,
}

/// Adds rows to those that are done.
fn count_in(log: Stored<Intervention>, rows: usize) -> ekbatan_core::domain::Changed<Intervention> {
    log.apply(|row| row.done += i64::try_from(rows).unwrap_or(i64::MAX))
}
