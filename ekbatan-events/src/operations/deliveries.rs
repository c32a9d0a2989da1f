//! What an operator does with single deliveries: looks, retries, skips, replays.

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{Delivery, DeliveryState};
use ekbatan_core::action::Priority;
use ekbatan_core::domain::{Id, New, Stored};
use ekbatan_core::repository::{Condition, Direction, PageRequest, Repository};
use ekbatan_core::shard::{Databases, Shard};
use uuid::Uuid;

use crate::dead_letter::{DeadLetter, DeadLetterState};
use crate::delivery_status::{DeliveryStatus, status};
use crate::error::EventsError;
use crate::intervention::{Intervention, InterventionKind, Operator};
use crate::nodes::membership::{free_deliveries, release};
use crate::nodes::registration::Registrar;
use crate::remote::call::RemoteCall;

/// How many blocked deliveries are released at a time.
const PAGE: usize = 256;

/// The state of a dead letter with which something is done.
const UNSETTLED: &str = "not settled";

/// Deliveries and dead letters of one shard, for operators.
///
/// ```
/// # use ekbatan_core::shard::Databases;
/// # use ekbatan_events::{DeliveryOperations, EventsError};
/// # async fn run(databases: &Databases) -> Result<(), EventsError> {
/// for shard in databases.shards() {
///     let operations = DeliveryOperations::new(databases, &shard);
///     for parked in operations.parked(100).await? {
///         println!("{} failed {} times: {:?}", parked.handler, parked.attempts, parked.last_error);
///         operations.retry(parked.id, "alice", "the ledger is open again").await?;
///     }
/// }
/// # Ok(()) }
/// ```
pub struct DeliveryOperations {
    pub(crate) databases: Databases,
    pub(crate) shard: Shard,
    pub(crate) deliveries: Repository<Delivery>,
    pub(crate) dead_letters: Repository<DeadLetter>,
    pub(crate) interventions: Repository<Intervention>,
    pub(crate) remote_calls: Repository<RemoteCall>,
}

/// A delivery that is not handled yet.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PendingDelivery {
    /// The identity, for [`DeliveryOperations::retry`] and [`DeliveryOperations::skip`].
    pub id: Uuid,
    /// The handler.
    pub handler: String,
    /// The event.
    pub event_id: Uuid,
    /// The model's id.
    pub stream: Uuid,
    /// The version of the model after the change.
    pub model_version: i64,
    /// The priority of an enqueued call. That of an event is always normal.
    pub priority: Priority,
    /// How many times the handler has failed.
    pub attempts: i64,
    /// Why it failed the last time.
    pub last_error: Option<String>,
    /// When it is tried next, if it is not parked.
    pub due: DateTime<Utc>,
}

impl DeliveryOperations {
    /// Operations on a shard.
    pub fn new(databases: &Databases, shard: &Shard) -> Self {
        Self {
            databases: databases.clone(),
            shard: shard.clone(),
            deliveries: databases.repository().on_shard(shard),
            dead_letters: databases.repository().on_shard(shard),
            interventions: databases.repository().on_shard(shard),
            remote_calls: databases.repository().on_shard(shard),
        }
    }

    /// How far each handler is, ordered by name. It reads the deliveries that there are; what is
    /// handled costs nothing.
    pub async fn status(&self) -> Result<Vec<DeliveryStatus>, EventsError> {
        status(&self.databases, &self.shard).await
    }

    /// Whether events wait for a node that gives them their deliveries: those of processes without a
    /// node, and of other programs. [`status`](Self::status) does not count them as pending yet.
    pub async fn lacks_deliveries(&self) -> Result<bool, EventsError> {
        let subscriptions = Registrar::new(&self.databases, &self.shard).read().await?;
        Ok(self.shard.lacks_deliveries(&subscriptions).await?)
    }

    /// The number of events that a handler has not handled yet, or of enqueued calls of the action with this
    /// name. A name that nobody has counts nothing: a handler that [`status`](Self::status) does not list
    /// may be misspelt, or no node has registered it yet.
    pub async fn pending(&self, handler: &str) -> Result<u64, EventsError> {
        Ok(self.deliveries.count_where(Delivery::HANDLER.eq(handler)).await?)
    }

    /// Deliveries that were given up and wait for somebody, the oldest first, at most `most`.
    pub async fn parked(&self, most: usize) -> Result<Vec<PendingDelivery>, EventsError> {
        self.oldest(Delivery::STATE.eq(DeliveryState::Parked), most).await
    }

    /// Deliveries that have failed and are tried again, those that are due first first, at most
    /// `most`.
    pub async fn failing(&self, most: usize) -> Result<Vec<PendingDelivery>, EventsError> {
        let states = [DeliveryState::New, DeliveryState::Waiting];
        let failing = Delivery::STATE.is_in(states) & Delivery::ATTEMPTS.gt(0);
        self.oldest(failing, most).await
    }

    async fn oldest(
        &self,
        condition: Condition<Delivery>,
        most: usize,
    ) -> Result<Vec<PendingDelivery>, EventsError> {
        let request = PageRequest::first(most).filter(condition);
        let request = request.order_by(Delivery::DUE, Direction::Ascending);
        let page = self.deliveries.page(request).await?;
        Ok(page.at_most(most).into_iter().map(|row| pending(row.into_value())).collect())
    }

    /// What operators did, the last first, at most `most`.
    pub async fn interventions(
        &self,
        most: usize,
    ) -> Result<Vec<Stored<Intervention>>, EventsError> {
        let request = PageRequest::first(most);
        let request = request.order_by(Intervention::STARTED, Direction::Descending);
        Ok(self.interventions.page(request).await?.at_most(most))
    }

    /// Lets a parked delivery be tried again at once, with all of its attempts. Those of its model
    /// that wait behind it follow. An event that is older than the handler's `max_age` is tried
    /// up to ten times. If somebody keeps one of those behind it locked, this fails after it has let
    /// the others follow.
    pub async fn retry(&self, id: Uuid, who: &str, why: &str) -> Result<(), EventsError> {
        let operator = Operator::new(who, why)?;
        let parked = self.find_parked(id).await?;
        let stream = parked.stream;
        let now = self.databases.clock().now();
        let kind = InterventionKind::Retry;
        let intervention = operator.did(kind, &parked.handler, id.to_string(), now);
        let change = parked.apply(|row| {
            (row.state, row.due, row.attempts) = (DeliveryState::New, now, 0);
        });
        let retrying = |transaction| async move {
            self.deliveries.within(&transaction).update(change).await?;
            self.interventions.within(&transaction).add(intervention).await?;
            Ok::<_, EventsError>(())
        };
        let retried = self.shard.transactions().in_transaction(retrying).await;
        self.found("delivery", id, "parked", retried)?;
        self.release_behind(stream).await
    }

    /// Moves a parked delivery to the dead letters, as skipped by somebody for a reason. Those of
    /// its model that wait behind it are handled.
    pub async fn skip(&self, id: Uuid, who: &str, why: &str) -> Result<(), EventsError> {
        let operator = Operator::new(who, why)?;
        let parked = self.find_parked(id).await?;
        let stream = parked.stream;
        let letter = DeadLetter::skipped(&parked, operator, self.databases.clock().now());
        let moving = |transaction| async move {
            self.deliveries.within(&transaction).erase(&parked).await?;
            self.dead_letters.within(&transaction).add(New::new(letter, ())).await?;
            Ok::<_, EventsError>(())
        };
        let moved = self.shard.transactions().in_transaction(moving).await;
        self.found("delivery", id, "parked", moved)?;
        self.release_behind(stream).await
    }

    /// Dead letters that nobody has settled, the oldest first, at most `most`.
    pub async fn dead_letters(&self, most: usize) -> Result<Vec<Stored<DeadLetter>>, EventsError> {
        let dead = DeadLetter::STATE.eq(DeadLetterState::Dead);
        let request = PageRequest::first(most).filter(dead);
        let request = request.order_by(DeadLetter::DIED, Direction::Ascending);
        Ok(self.dead_letters.page(request).await?.at_most(most))
    }

    /// The dead letter with this id, also if it is settled.
    pub async fn dead_letter(&self, id: Uuid) -> Result<Option<Stored<DeadLetter>>, EventsError> {
        Ok(self.dead_letters.find(Id::from_uuid(id)).await?)
    }

    /// The delivery with this id; `None` if it is handled.
    pub async fn delivery(&self, id: Uuid) -> Result<Option<PendingDelivery>, EventsError> {
        let found = self.deliveries.find(Id::from_uuid(id)).await?;
        Ok(found.map(|row| pending(row.into_value())))
    }

    /// Delivers the event of a dead letter that nobody has settled to its handler once more. It has no order with
    /// events that were handled since. Letters that were settled are replayed by
    /// [`replay_all`](Self::replay_all), which counts them. Refused if the handler is retired.
    pub async fn replay(
        &self,
        letter: &Stored<DeadLetter>,
        who: &str,
        why: &str,
    ) -> Result<(), EventsError> {
        let operator = Operator::new(who, why)?;
        self.check_unsettled(letter)?;
        self.check_not_retired(&letter.handler).await?;
        let (now, event) = (self.databases.clock().now(), letter.event_id);
        let delivery = letter.delivered_again(now);
        let settled =
            letter.clone().apply(|row| row.settle(DeadLetterState::Replayed, operator, now));
        let moving = |transaction| async move {
            // Before the delivery is there, so that no retention deletes the event meanwhile.
            if self.shard.keep_events(&transaction, vec![event]).await?.is_empty() {
                return Err(self.not_found("event", event, "stored"));
            }
            self.dead_letters.within(&transaction).update(settled).await?;
            self.deliveries.within(&transaction).add(New::new(delivery, ())).await?;
            Ok::<_, EventsError>(())
        };
        let moved = self.shard.transactions().in_transaction(moving).await;
        self.found("dead letter", letter.id.uuid(), UNSETTLED, moved)
    }

    /// Settles a dead letter that nobody has settled: it is not to be handled.
    pub async fn dismiss(
        &self,
        letter: &Stored<DeadLetter>,
        who: &str,
        why: &str,
    ) -> Result<(), EventsError> {
        let operator = Operator::new(who, why)?;
        self.check_unsettled(letter)?;
        let now = self.databases.clock().now();
        let settled =
            letter.clone().apply(|row| row.settle(DeadLetterState::Skipped, operator, now));
        let updated = self.dead_letters.update(settled).await;
        self.found("dead letter", letter.id.uuid(), UNSETTLED, updated).map(drop)
    }

    /// What was replayed would be delivered twice, and what was decided would be decided anew.
    fn check_unsettled(&self, letter: &Stored<DeadLetter>) -> Result<(), EventsError> {
        match letter.state {
            DeadLetterState::Dead => Ok(()),
            _ => Err(self.not_found("dead letter", letter.id.uuid(), UNSETTLED)),
        }
    }

    async fn find_parked(&self, id: Uuid) -> Result<Stored<Delivery>, EventsError> {
        let found = self.deliveries.find(Id::from_uuid(id)).await?;
        let parked = found.filter(|row| row.state == DeliveryState::Parked);
        parked.ok_or_else(|| self.not_found("delivery", id, "parked"))
    }

    pub(crate) fn not_found(
        &self,
        what: &'static str,
        id: Uuid,
        state: &'static str,
    ) -> EventsError {
        EventsError::NotFound { what, id, shard: self.shard.identifier(), state }
    }

    /// Somebody else may have changed the row since it was read.
    pub(crate) fn found<T, E: Into<EventsError>>(
        &self,
        what: &'static str,
        id: Uuid,
        state: &'static str,
        written: Result<T, E>,
    ) -> Result<T, EventsError> {
        written.map_err(Into::into).map_err(|error| match error {
            error if error.is_stale() => self.not_found(what, id, state),
            error => error,
        })
    }

    /// Releases the deliveries that were blocked by one that is not parked any more. This comes
    /// after that one was changed: who blocks another one afterwards sees it. A handler may have
    /// several names, so all deliveries of the stream are released: others are blocked again.
    pub(crate) async fn release_behind(&self, stream: Uuid) -> Result<(), EventsError> {
        let blocked = Delivery::STREAM.eq(stream) & Delivery::STATE.eq(DeliveryState::Blocked);
        let mut page = Some(PageRequest::first(PAGE).filter(blocked));
        let mut locked = Vec::new();
        // Each row once: what is blocked again meanwhile stands behind another parked one.
        while let Some(request) = page {
            let found = self.deliveries.page(request).await?;
            let ids = found.rows.iter().map(|row| row.id.uuid()).collect();
            let free = free_deliveries(&self.shard, ids).await?;
            for row in found.rows {
                if free.contains(&row.id.uuid()) {
                    self.release_blocked(row).await?;
                } else {
                    locked.push(row);
                }
            }
            page = found.next;
        }
        // At the end: a lock that is not released in time is an error, which leaves no other one blocked.
        for row in locked {
            self.release_blocked(row).await?;
        }
        Ok(())
    }

    /// Releases a blocked delivery, also if a check changes it at this moment.
    async fn release_blocked(&self, mut row: Stored<Delivery>) -> Result<(), EventsError> {
        while row.state == DeliveryState::Blocked {
            let (id, now) = (row.id, self.databases.clock().now());
            if release(&self.deliveries, row, now).await? {
                break;
            }
            let Some(present) = self.deliveries.find(id).await? else { break };
            row = present;
        }
        Ok(())
    }
}

fn pending(row: Delivery) -> PendingDelivery {
    PendingDelivery {
        id: row.id.uuid(),
        handler: row.handler,
        event_id: row.event_id,
        stream: row.stream,
        model_version: row.model_version,
        priority: row.priority,
        attempts: row.attempts,
        last_error: row.last_error,
        due: row.due,
    }
}

impl std::fmt::Debug for DeliveryOperations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeliveryOperations").field("shard", &self.shard).finish_non_exhaustive()
    }
}
