//! What an operator does with many dead letters or events at a time: counts, replays, purges.
//!
//! Invariants: what is done is done with exactly the rows that were found when it began, and only
//! if they are as many as the operator has counted. Each transaction changes some of them and adds
//! their number to the row of the intervention.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{
    Delivery, DeliveryState, EventKind, StoredEvents, StoredPlace, Subscription, Wanted, stream_of,
};
use ekbatan_core::action::Priority;
use ekbatan_core::domain::{Id, New, Stored};
use ekbatan_core::repository::{Condition, Direction, PageRequest};
use uuid::Uuid;

use crate::dead_letter::{DeadLetter, DeadLetterState};
use crate::delivery_filter::{DeliveryFilter, Selected};
use crate::error::EventsError;
use crate::intervention::{Intervention, InterventionKind, InterventionState, Operator};
use crate::operations::DeliveryOperations;
use crate::read_events::{ClaimedEvent, read_events};

/// How many rows one transaction changes.
const CHUNK: usize = 256;

/// How many rows a page has that is only read.
const PAGE: usize = 1_000;

/// How many rows are replayed or purged at once.
const MOST: usize = 1_000_000;

/// The place of a row in its stream, by which replayed deliveries are inserted.
type Place = (Uuid, i64, i64, Uuid);

/// The letters that a filter selects, as they were found.
struct FoundLetter {
    id: Id<DeadLetter>,
    place: Place,
}

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
    /// many rows as were counted. Dead letters that somebody else settles meanwhile are left out, and
    /// so are events that were deleted, and those that the handler still has to handle.
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
                places.sort_by_key(place_of_event);
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

    /// Stores that something begins, if it is what was counted.
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
        let now = self.databases.clock().now();
        let row = operator.begins(kind, &filter.handler, filter.to_string(), found, now);
        Ok(self.interventions.add(row).await?)
    }

    async fn end(&self, log: Stored<Intervention>) -> Result<u64, EventsError> {
        let ended = log.apply(|row| row.state = InterventionState::Done);
        Ok(self.interventions.update(ended).await?.done.unsigned_abs())
    }

    fn too_many(&self, filter: &DeliveryFilter) -> EventsError {
        let shard = self.shard.identifier();
        EventsError::TooMany { filter: filter.to_string(), most: MOST, shard }
    }

    /// The stored events that a filter selects, in no order.
    async fn find_events(&self, filter: &DeliveryFilter) -> Result<Vec<StoredPlace>, EventsError> {
        let rows = self.subscriptions_of(&filter.handler).await?;
        let wanted: Vec<(Wanted, _)> =
            rows.into_iter().map(|row| (Wanted::read(&row.event_type), row)).collect();
        let retired = wanted.iter().filter(|(of, _)| *of == Wanted::Retired);
        let retired: Vec<&Subscription> = retired.map(|(_, row)| row).collect();
        let event_types = chosen_names(&wanted, filter.event_type.as_ref());
        if event_types.as_ref().is_some_and(HashSet::is_empty) {
            return Ok(Vec::new());
        }
        let search = StoredEvents {
            event_types,
            model_type: filter.model_type.clone(),
            model_id: filter.model_id.clone(),
            from: filter.from,
            until: filter.until,
        };
        let unsettled = self.unsettled_events(&filter.handler).await?;
        let mut found = Vec::new();
        let mut after = Some(Uuid::nil());
        while let Some(begin) = after {
            let page = self.shard.stored_places(&search, begin).await?;
            let is_done = |place: &StoredPlace| {
                let kind = EventKind { model: &place.model_type, name: &place.event_type };
                !unsettled.contains(&place.event_id)
                    && wanted
                        .iter()
                        .any(|(of, row)| of.has(kind) && !is_lacking(row, &retired, place))
            };
            let done: Vec<StoredPlace> = page.places.into_iter().filter(is_done).collect();
            for chunk in done.chunks(CHUNK) {
                let places = chunk.iter().map(|place| (place.stream, place.model_version));
                let (streams, versions) = places.unzip();
                let open = self.open_among(&filter.handler, streams, versions).await?;
                found.extend(chunk.iter().filter(|of| !open.contains(&of.event_id)).cloned());
            }
            if found.len() > MOST {
                return Err(self.too_many(filter));
            }
            after = page.next;
        }
        Ok(found)
    }

    /// The events with a dead letter that nobody has settled.
    async fn unsettled_events(&self, handler: &str) -> Result<HashSet<Uuid>, EventsError> {
        let mut events = HashSet::new();
        let dead = DeadLetter::STATE.eq(DeadLetterState::Dead) & DeadLetter::HANDLER.eq(handler);
        let mut page = Some(PageRequest::first(PAGE).filter(dead));
        while let Some(request) = page {
            let found = self.dead_letters.page(request).await?;
            events.extend(found.rows.iter().map(|letter| letter.event_id));
            page = found.next;
        }
        Ok(events)
    }

    /// The events that are still to be handled, of these streams and versions.
    async fn open_among(
        &self,
        handler: &str,
        streams: HashSet<Uuid>,
        versions: HashSet<i64>,
    ) -> Result<HashSet<Uuid>, EventsError> {
        let open = Delivery::STREAM.is_in(streams)
            & Delivery::HANDLER.eq(handler)
            & Delivery::MODEL_VERSION.is_in(versions);
        let open = self.deliveries.find_where(open).await?;
        Ok(open.into_iter().map(|row| row.event_id).collect())
    }

    async fn replay_events(
        &self,
        log: Stored<Intervention>,
        filter: &DeliveryFilter,
        chunk: &[StoredPlace],
        operator: Operator<'_>,
    ) -> Result<Stored<Intervention>, EventsError> {
        let now = self.databases.clock().now();
        // The text tells a node that an operator wants the event to run, whatever its age.
        let note = format!("replayed by {}: {}", operator.who, operator.why);
        let events: Vec<Uuid> = chunk.iter().map(|place| place.event_id).collect();
        let replaying = |transaction| async move {
            // Before their deliveries are there, so that no retention deletes them meanwhile.
            let kept = self.shard.keep_events(&transaction, events).await?;
            let places = chunk.iter().filter(|place| kept.contains(&place.event_id));
            let deliveries = places.map(|place| New::new(again(place, filter, &note, now), ()));
            let deliveries: Vec<_> = deliveries.collect();
            let log = count_in(log, deliveries.len());
            self.deliveries.within(&transaction).add_all(deliveries).await?;
            Ok::<_, EventsError>(self.interventions.within(&transaction).update(log).await?)
        };
        Ok(self.shard.transactions().in_transaction(replaying).await?)
    }

    /// The letters that a filter selects, the oldest first.
    async fn find_letters(&self, filter: &DeliveryFilter) -> Result<Vec<FoundLetter>, EventsError> {
        let request = PageRequest::first(PAGE).filter(letters_of(filter));
        let mut page = Some(request.order_by(DeadLetter::DIED, Direction::Ascending));
        let mut found = Vec::new();
        while let Some(request) = page {
            let letters = self.dead_letters.page(request).await?;
            let fitting = self.fitting(filter, letters.rows).await?;
            found.extend(fitting.into_iter().map(|letter| FoundLetter {
                id: letter.id,
                place: (letter.stream, letter.model_version, letter.event_index, letter.event_id),
            }));
            if found.len() > MOST {
                return Err(self.too_many(filter));
            }
            page = letters.next;
        }
        Ok(found)
    }

    /// The letters whose events the filter selects. An event that was deleted or cannot be read fits no
    /// name.
    async fn fitting(
        &self,
        filter: &DeliveryFilter,
        mut letters: Vec<Stored<DeadLetter>>,
    ) -> Result<Vec<Stored<DeadLetter>>, EventsError> {
        if !filter.names_events() {
            return Ok(letters);
        }
        let ids: HashSet<Uuid> = letters.iter().map(|letter| letter.event_id).collect();
        let events = read_events(&self.shard, ids).await?;
        let fits =
            |wanted: &Option<String>, name: &str| wanted.as_deref().is_none_or(|of| of == name);
        let fitting: HashSet<Uuid> = events
            .values()
            .filter_map(ClaimedEvent::known)
            .filter(|event| {
                fits(&filter.event_type, &event.event_type)
                    && fits(&filter.model_type, &event.model_type)
            })
            .map(|event| event.id)
            .collect();
        letters.retain(|letter| fitting.contains(&letter.event_id));
        Ok(letters)
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
        let places: HashMap<Uuid, Place> =
            chunk.iter().map(|letter| (letter.id.uuid(), letter.place)).collect();
        let ids: Vec<Id<DeadLetter>> = chunk.iter().map(|letter| letter.id).collect();
        loop {
            let mut letters = self.dead_letters.find_by_ids(&ids).await?;
            letters.retain(|letter| selects(filter, letter.state));
            letters.sort_by_key(|letter| places.get(&letter.id.uuid()).copied());
            if let Change::Replay(_) = change {
                // An event may have several letters. One delivery is enough.
                let places = letters.iter().map(|letter| (letter.stream, letter.model_version));
                let (streams, versions) = places.unzip();
                let mut open = self.open_among(&filter.handler, streams, versions).await?;
                letters.retain(|letter| open.insert(letter.event_id));
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

/// The letters that a filter selects, but for the names of events and models, which letters do not
/// have.
fn letters_of(filter: &DeliveryFilter) -> Condition<DeadLetter> {
    let settled = [DeadLetterState::Replayed, DeadLetterState::Skipped];
    let state = match filter.of {
        Selected::SettledLetters => DeadLetter::STATE.is_in(settled),
        _ => DeadLetter::STATE.eq(DeadLetterState::Dead),
    };
    let mut condition = state & DeadLetter::HANDLER.eq(filter.handler.clone());
    if let Some(id) = &filter.model_id {
        condition = condition & DeadLetter::STREAM.eq(stream_of(id));
    }
    if let Some(from) = filter.from {
        condition = condition & DeadLetter::DIED.ge(from);
    }
    if let Some(until) = filter.until {
        condition = condition & DeadLetter::DIED.lt(until);
    }
    condition
}

fn selects(filter: &DeliveryFilter, state: DeadLetterState) -> bool {
    (filter.of == Selected::SettledLetters) == (state != DeadLetterState::Dead)
}

/// The names of the events to look for; `None` for any, as a relay may want.
fn chosen_names(
    wanted: &[(Wanted, Subscription)],
    chosen: Option<&String>,
) -> Option<HashSet<String>> {
    let mut names = HashSet::new();
    let mut is_any = false;
    for (of, _) in wanted {
        match of {
            Wanted::Event(name) => {
                names.insert(name.clone());
            }
            Wanted::Model(_) | Wanted::All => is_any = true,
            Wanted::Fence | Wanted::Retired => {}
        }
    }
    match chosen {
        Some(chosen) if is_any => Some(HashSet::from([chosen.clone()])),
        Some(chosen) => Some(names.into_iter().filter(|name| name == chosen).collect()),
        None => (!is_any).then_some(names),
    }
}

/// Whether the sweep is still to deliver an event.
fn is_lacking(subscription: &Subscription, retired: &[&Subscription], place: &StoredPlace) -> bool {
    // Where it goes on where it was retired, earlier events had their deliveries.
    let goes_on = retired.iter().find(|of| of.since_date == subscription.since_date);
    let had = |generation: &i64| {
        *generation >= subscription.since
            || goes_on.is_some_and(|retired| (1..retired.since).contains(generation))
    };
    place.fanned_out.filter(had).is_none()
        && subscription.since_date.is_none_or(|date| place.date >= date)
}

fn place_of_event(place: &StoredPlace) -> Place {
    (place.stream, place.model_version, place.event_index, place.event_id)
}

fn again(place: &StoredPlace, filter: &DeliveryFilter, note: &str, now: DateTime<Utc>) -> Delivery {
    Delivery {
        // Its own identity: the steps of the first delivery are not those of this one.
        id: Id::from_uuid(Delivery::id_again(place.event_id)),
        handler: filter.handler.clone(),
        stream: place.stream,
        model_version: place.model_version,
        event_index: place.event_index,
        event_id: place.event_id,
        priority: Priority::Normal,
        due: now,
        attempts: 0,
        node: Uuid::nil(),
        last_error: Some(note.to_owned()),
        state: DeliveryState::New,
    }
}

/// Adds rows to those that are done.
fn count_in(log: Stored<Intervention>, rows: usize) -> ekbatan_core::domain::Changed<Intervention> {
    log.apply(|row| row.done += i64::try_from(rows).unwrap_or(i64::MAX))
}
