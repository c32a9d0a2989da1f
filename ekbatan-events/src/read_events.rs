//! The events of claimed deliveries, and when they are read.
//!
//! Invariants:
//! - What a round reads of an event has a bound. The run of a longer one reads its payload when it begins, so
//!   a node has no more long payloads in memory than runs.
//! - An event that cannot be read keeps no other one from being read.

use std::collections::{HashMap, HashSet};

use ekbatan_core::__private::deliveries::StoredEvent;
use ekbatan_core::db::{DbError, DbErrorKind};
use ekbatan_core::shard::Shard;
use uuid::Uuid;

/// How many bytes a payload has at most that a round reads.
const LONGEST: usize = 32 * 1024;

/// How many events are read together. Their payloads have at most 16 MiB, which a round can read in its time.
const TOGETHER: usize = 512;

/// The event of a claimed delivery.
#[derive(Clone)]
pub(crate) enum ClaimedEvent {
    /// All of it.
    Whole(StoredEvent),
    /// Without its payload, which has so many bytes.
    Long(StoredEvent, usize),
    /// It cannot be read, for this reason.
    Unreadable(String),
}

impl ClaimedEvent {
    /// An event that this process has committed. A long payload is not kept.
    pub(crate) fn of(mut event: StoredEvent) -> Self {
        let bytes = event.payload.len();
        if bytes <= LONGEST {
            return Self::Whole(event);
        }
        event.payload = String::new();
        Self::Long(event, bytes)
    }

    /// What is known of the event.
    pub(crate) fn known(&self) -> Option<&StoredEvent> {
        match self {
            Self::Whole(event) | Self::Long(event, _) => Some(event),
            Self::Unreadable(_) => None,
        }
    }

    /// Its id, if its payload is not here.
    pub(crate) fn left_out(&self) -> Option<Uuid> {
        match self {
            Self::Long(event, _) => Some(event.id),
            Self::Whole(_) | Self::Unreadable(_) => None,
        }
    }

    /// How many bytes the payload has.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Whole(event) => event.payload.len(),
            Self::Long(_, bytes) => *bytes,
            Self::Unreadable(_) => 0,
        }
    }

    /// The event with its payload, or why it cannot be read.
    pub(crate) async fn whole(self, shard: &Shard) -> Result<Result<StoredEvent, String>, DbError> {
        let id = match self {
            Self::Whole(event) => return Ok(Ok(event)),
            Self::Unreadable(why) => return Ok(Err(why)),
            Self::Long(event, _) => event.id,
        };
        match shard.events(vec![id]).await {
            Ok(mut found) => Ok(found.pop().ok_or_else(|| "the event was deleted".to_owned())),
            Err(error) if error.kind() == DbErrorKind::Decode => Ok(Err(unreadable(&error))),
            Err(error) => Err(error),
        }
    }
}

/// The events with these ids that are there.
pub(crate) async fn read_events(
    shard: &Shard,
    ids: HashSet<Uuid>,
) -> Result<HashMap<Uuid, ClaimedEvent>, DbError> {
    let ids: Vec<Uuid> = ids.into_iter().collect();
    let mut events = HashMap::with_capacity(ids.len());
    for some in ids.chunks(TOGETHER) {
        match shard.short_events(some.to_vec(), LONGEST).await {
            Ok(found) => events.extend(found.into_iter().map(claimed)),
            // Another program has written one of them.
            Err(error) if error.kind() == DbErrorKind::Decode => {
                for id in some {
                    match shard.short_events(vec![*id], LONGEST).await {
                        Ok(found) => events.extend(found.into_iter().map(claimed)),
                        Err(error) if error.kind() == DbErrorKind::Decode => {
                            events.insert(*id, ClaimedEvent::Unreadable(unreadable(&error)));
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(events)
}

fn claimed((event, left_out): (StoredEvent, Option<usize>)) -> (Uuid, ClaimedEvent) {
    let id = event.id;
    match left_out {
        None => (id, ClaimedEvent::Whole(event)),
        Some(bytes) => (id, ClaimedEvent::Long(event, bytes)),
    }
}

fn unreadable(error: &DbError) -> String {
    format!("the event cannot be read: {error}")
}
