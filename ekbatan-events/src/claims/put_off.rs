//! Lets deliveries wait that stand behind another one, so that later rounds find others.

use std::collections::HashSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{Delivery, DeliveryState};
use ekbatan_core::domain::Stored;
use ekbatan_core::repository::Repository;
use futures_util::future::join_all;
use uuid::Uuid;

use crate::claims::round_writes::RoundWrites;
use crate::error::EventsError;
use crate::handlers::node_handler::Handler;
use crate::nodes::membership::release;

/// For how long a delivery waits at least behind one that is tried again later.
const BEHIND_WAITING: Duration = Duration::from_millis(50);

/// For how long at most: the call before it may be due in a month, and be cancelled tomorrow.
const LONGEST_BEHIND_WAITING: Duration = Duration::from_secs(60);

/// After which time it is checked whether a delivery is still behind a parked one. Somebody who releases
/// the parked one releases those behind it, and [`put_off`] those that it blocks at that moment. If a
/// process, a round or a connection ends in between, the delivery waits for this check.
const BEHIND_PARKED: Duration = Duration::from_secs(600);

/// After which time at most a blocked delivery of the handler is looked at again. An action that cancels
/// a parked call releases nothing.
pub(crate) fn behind_parked(handler: &Handler) -> Duration {
    if handler.is_of_calls() { LONGEST_BEHIND_WAITING } else { BEHIND_PARKED }
}

/// A delivery, and the row before it in its stream that this node does not hold.
pub(crate) struct Obstructed {
    pub(crate) delivery: Stored<Delivery>,
    pub(crate) behind: Stored<Delivery>,
    /// The name and the aliases of the handler.
    pub(crate) names: Vec<String>,
    /// After which time it is looked at again if that row is parked.
    pub(crate) behind_parked: Duration,
}

/// Lets the deliveries wait for those before them. Returns how many it changed. What fails is noted, and keeps
/// nothing from the others.
pub(crate) async fn put_off(
    deliveries: &Repository<Delivery>,
    writes: &RoundWrites<'_>,
    obstructed: Vec<Obstructed>,
    now: DateTime<Utc>,
) -> usize {
    let waits = obstructed.into_iter().map(|one| wait(deliveries, writes, one, now));
    let mut count = 0;
    let (mut blocked, mut obstacles, mut streams) = (Vec::new(), Vec::new(), HashSet::new());
    for (row, behind, names) in join_all(waits).await.into_iter().flatten() {
        count += 1;
        if row.state == DeliveryState::Blocked {
            streams.insert((row.stream, names.clone()));
            blocked.push((row, names.clone()));
            if behind.state == DeliveryState::Blocked {
                obstacles.push((behind, names));
            }
        }
    }
    // An operator who releases the parked row then releases all blocked ones. That may have happened
    // just before these were blocked, so the parked row is looked for again. The obstacle itself may
    // be another blocked row, which is released as well: the process that released the parked one may have
    // died before it came to this one.
    let mut free: HashSet<(Uuid, Vec<String>)> = HashSet::new();
    for (stream, names) in streams {
        let is_parked = is_parked(deliveries, stream, names.clone()).await;
        // Without an answer they are released, too: the next round blocks them again if they have to wait.
        if !is_parked.inspect_err(|error| writes.note_failure(error)).unwrap_or(false) {
            free.insert((stream, names));
        }
    }
    // The obstacles come last: one that is locked takes the time of those after it.
    for (row, names) in blocked.into_iter().chain(obstacles) {
        if free.contains(&(row.stream, names))
            && let Err(error) = writes.answer(release(deliveries, row, now)).await
        {
            writes.note_failure(&error);
        }
    }
    count
}

/// Whether a delivery of a stream is parked.
pub(crate) async fn is_parked(
    deliveries: &Repository<Delivery>,
    stream: Uuid,
    names: Vec<String>,
) -> Result<bool, EventsError> {
    let parked = Delivery::STREAM.eq(stream)
        & Delivery::HANDLER.is_in(names)
        & Delivery::STATE.eq(DeliveryState::Parked);
    Ok(deliveries.exists_where(parked).await?)
}

/// A delivery that waits, the one that it waits for, and the names of their handler.
type Waiting = (Stored<Delivery>, Stored<Delivery>, Vec<String>);

/// `None` if the delivery need not wait, is not as it was read, or is locked, or if the write failed.
async fn wait(
    deliveries: &Repository<Delivery>,
    writes: &RoundWrites<'_>,
    obstructed: Obstructed,
    now: DateTime<Utc>,
) -> Option<Waiting> {
    let Obstructed { delivery, behind, names, behind_parked } = obstructed;
    let (state, due) = match behind.state {
        // The next round claims it, or leaves the whole stream alone.
        DeliveryState::New | DeliveryState::Claimed => return None,
        DeliveryState::Waiting => {
            let due = behind.due.min(now + LONGEST_BEHIND_WAITING).max(now + BEHIND_WAITING);
            (DeliveryState::Waiting, due)
        }
        DeliveryState::Parked | DeliveryState::Blocked => {
            (DeliveryState::Blocked, now + behind_parked)
        }
    };
    let change = delivery.apply(|row| (row.state, row.due) = (state, due));
    match writes.answer(async { Ok(deliveries.update(change).await?) }).await {
        Ok(changed) => changed.map(|changed| (changed, behind, names)),
        Err(error) if error.is_stale() => None,
        Err(error) => {
            writes.note_failure(&error);
            None
        }
    }
}
