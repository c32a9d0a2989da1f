//! The row of a delivery.

use chrono::{DateTime, NaiveDate, NaiveTime, Utc};
use ekbatan_macros::{Entity, State};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::clock::to_micros;
use crate::db::{StageError, Staged, stage_new};
use crate::domain::{Id, New, Stored};
use crate::outbox::Priority;

/// An event that a handler has not handled yet.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "eventlog.deliveries")]
pub struct Delivery {
    /// The identity. It follows from the event and the handler; that of a replay is random after the event's
    /// time.
    pub id: Id<Delivery>,
    /// The stored name of the handler.
    pub handler: String,
    /// The model's id. Events of a stream are handled in order.
    pub stream: Uuid,
    /// The version of the model after the change.
    pub model_version: i64,
    /// The position of the event within its action.
    pub event_index: i64,
    /// The event.
    pub event_id: Uuid,
    /// Of those of the handler that are due, a node begins the ones of higher priority first.
    pub priority: Priority,
    /// The time from which a waiting delivery is tried.
    pub due: DateTime<Utc>,
    /// How many times the handler has failed.
    pub attempts: i64,
    /// The node that has claimed the delivery, or nil.
    pub node: Uuid,
    /// Why the handler failed the last time.
    pub last_error: Option<String>,
    /// What the delivery waits for.
    pub state: DeliveryState,
}

/// What a delivery waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, State)]
pub enum DeliveryState {
    /// For a node. Its time has come: no clock is asked any more.
    New,
    /// For its time, and then for a node.
    Waiting,
    /// For the handler, on the node that has claimed it.
    Claimed,
    /// For somebody to retry or skip it.
    Parked,
    /// For a parked delivery that comes before it in its stream.
    Blocked,
}

/// The place of an event in its stream. Earlier ones are less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventPlace {
    /// The model's id.
    pub stream: Uuid,
    /// The version of the model after the change.
    pub model_version: i64,
    /// The position of the event within its action.
    pub event_index: i64,
    /// The event.
    pub event_id: Uuid,
}

impl Delivery {
    /// One more delivery of an event to a handler. The note tells a node that an operator wants the event to
    /// run, whatever its age.
    pub fn once_more(handler: &str, place: EventPlace, note: String, now: DateTime<Utc>) -> Self {
        let EventPlace { stream, model_version, event_index, event_id } = place;
        Self {
            // Its own identity: the steps of the first delivery are not those of this one.
            id: Id::from_uuid(Self::id_again(event_id)),
            handler: handler.to_owned(),
            stream,
            model_version,
            event_index,
            event_id,
            priority: Priority::Normal,
            due: now,
            attempts: 0,
            node: Uuid::nil(),
            last_error: Some(note),
            state: DeliveryState::New,
        }
    }

    /// A new id for one more delivery of an event.
    fn id_again(event: Uuid) -> Uuid {
        let mut bytes = *Uuid::now_v7().as_bytes();
        bytes[..TIME].copy_from_slice(&event.as_bytes()[..TIME]);
        id_of(bytes)
    }

    /// The least and the greatest id that a delivery of these events can have.
    pub(crate) fn ids_of(events: &[Uuid]) -> (Uuid, Uuid) {
        let bound = |event: Option<&Uuid>, rest| {
            let mut bytes = [rest; 16];
            let event = event.copied().unwrap_or_default();
            bytes[..TIME].copy_from_slice(&event.as_bytes()[..TIME]);
            id_of(bytes)
        };
        (bound(events.iter().min(), 0), bound(events.iter().max(), u8::MAX))
    }
}

/// The id of a remote call that a handler makes for an event. It is the same for every delivery of the
/// event.
pub fn remote_call_id(event: Uuid, handler: &str, name: &str) -> Uuid {
    let mut hash = Sha256::new();
    hash.update("remote call");
    hash.update(event.as_bytes());
    for text in [handler, name] {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    id_beside(event, hash)
}

/// What an event brings to each of its deliveries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewDelivery {
    pub(crate) event_id: Uuid,
    pub(crate) stream: Uuid,
    pub(crate) model_version: i64,
    pub(crate) event_index: i64,
    /// The time of the event. What lies in the future waits until then.
    pub(crate) event_date: DateTime<Utc>,
    /// Whether that time has not come yet.
    pub(crate) is_delayed: bool,
    pub(crate) priority: Priority,
}

impl NewDelivery {
    /// The row for one handler, claimed by a node if given, and the delivery as it is stored.
    pub(crate) fn stage(
        &self,
        handler: &str,
        node: Option<Uuid>,
    ) -> Result<(Staged, Stored<Delivery>), StageError> {
        let Self { event_id, stream, model_version, event_index, event_date, is_delayed, priority } =
            *self;
        // Another program may have given an event a date that can be read, but not written.
        let event_date = event_date.clamp(FIRST_DATE, LAST_DATE);
        let delivery = Delivery {
            id: Id::from_uuid(delivery_id(event_id, handler)),
            handler: handler.to_owned(),
            stream,
            model_version,
            event_index,
            event_id,
            priority,
            due: to_micros(event_date),
            attempts: 0,
            node: node.unwrap_or_default(),
            last_error: None,
            state: match node {
                Some(_) => DeliveryState::Claimed,
                None if is_delayed => DeliveryState::Waiting,
                None => DeliveryState::New,
            },
        };
        stage_new(New::new(delivery, ()), event_date).map(|(row, stored, _)| (row, stored))
    }
}

/// The first and the last date that every database stores.
const FIRST_DATE: DateTime<Utc> =
    NaiveDate::from_ymd_opt(1000, 1, 1).unwrap().and_time(NaiveTime::MIN).and_utc();
const LAST_DATE: DateTime<Utc> =
    NaiveDate::from_ymd_opt(9999, 12, 31).unwrap().and_time(NaiveTime::MIN).and_utc();

/// How many bytes of an event's id are its time. The ids of its deliveries begin with them.
const TIME: usize = 6;

fn id_of(bytes: [u8; 16]) -> Uuid {
    uuid::Builder::from_custom_bytes(bytes).with_version(uuid::Version::SortRand).into_uuid()
}

/// The id of a handler's delivery of an event: the time of the event's id, and a hash of both. If a
/// commit and a sweep both insert the delivery, the second insert is refused.
pub(crate) fn delivery_id(event: Uuid, handler: &str) -> Uuid {
    let mut hash = Sha256::new();
    hash.update(event.as_bytes());
    hash.update(handler.as_bytes());
    id_beside(event, hash)
}

/// An id that begins with the time of the event's id and goes on with a hash.
fn id_beside(event: Uuid, hash: Sha256) -> Uuid {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    bytes[..TIME].copy_from_slice(&event.as_bytes()[..TIME]);
    id_of(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_delivery_follows_from_its_event_and_its_handler() {
        let (event, other) = (Uuid::now_v7(), Uuid::now_v7());
        assert_eq!(delivery_id(event, "ledger.post"), delivery_id(event, "ledger.post"));
        assert_ne!(delivery_id(event, "ledger.post"), delivery_id(event, "mail.send"));
        assert_ne!(delivery_id(event, "ledger.post"), delivery_id(other, "ledger.post"));
        // Rows that are inserted one after another stand beside each other in the index.
        assert_eq!(delivery_id(event, "ledger.post").as_bytes()[..6], event.as_bytes()[..6]);
    }

    #[test]
    fn the_id_of_a_remote_call_follows_from_its_event_its_handler_and_its_name() {
        let (event, other) = (Uuid::now_v7(), Uuid::now_v7());
        let id = remote_call_id(event, "ledger.post", "charge");
        assert_eq!(id, remote_call_id(event, "ledger.post", "charge"));
        assert_ne!(id, remote_call_id(other, "ledger.post", "charge"));
        assert_ne!(id, remote_call_id(event, "ledger.postc", "harge"));
        assert_ne!(id, remote_call_id(event, "ledger.post", "refund"));
        assert_ne!(id, delivery_id(event, "ledger.post"));
    }

    #[test]
    fn every_delivery_of_an_event_has_its_id_between_those_of_its_neighbours() {
        let mut events: Vec<Uuid> = (0..20).map(|_| Uuid::now_v7()).collect();
        events.push(Uuid::from_u128(u128::MAX));
        for event in &events {
            let (least, greatest) = Delivery::ids_of(std::slice::from_ref(event));
            for id in [delivery_id(*event, "ledger.post"), Delivery::id_again(*event)] {
                assert!(least <= id && id <= greatest, "{event}: {id}");
                assert_eq!(id.get_version_num(), 7);
            }
            let (least_of_all, greatest_of_all) = Delivery::ids_of(&events);
            assert!(least_of_all <= least && greatest <= greatest_of_all);
        }
        assert_ne!(Delivery::id_again(events[0]), Delivery::id_again(events[0]));
    }
}
