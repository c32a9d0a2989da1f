//! The rows that a filter selects: dead letters, or stored events whose handling is over.

use std::collections::HashSet;

use ekbatan_core::__private::StoredId;
use ekbatan_core::__private::deliveries::{
    Delivery, EventKind, EventPlace, StoredEvents, StoredPlace, Subscription, Wanted, stream_of,
};
use ekbatan_core::domain::{Id, Stored};
use ekbatan_core::repository::{Condition, Direction, PageRequest};
use uuid::Uuid;

use crate::dead_letter::{DeadLetter, DeadLetterState};
use crate::delivery_filter::{DeliveryFilter, Selected};
use crate::error::EventsError;
use crate::operations::deliveries::DeliveryOperations;
use crate::read_events::{ClaimedEvent, read_events};

/// How many events are looked up at once.
const CHUNK: usize = 256;

/// How many rows a page has that is only read.
const PAGE: usize = 1_000;

/// How many rows are replayed or purged at once.
const MOST: usize = 1_000_000;

/// A letter that a filter selects, as it was found.
pub(crate) struct FoundLetter {
    pub(crate) id: Id<DeadLetter>,
    pub(crate) place: EventPlace,
}

impl DeliveryOperations {
    /// The stored events that a filter selects, in no order.
    pub(crate) async fn find_events(
        &self,
        filter: &DeliveryFilter,
    ) -> Result<Vec<StoredPlace>, EventsError> {
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
            model_ids: filter.model_id.as_deref().map(spellings),
            from: filter.from,
            until: filter.until,
        };
        let unsettled = self.unsettled_events(&filter.handler).await?;
        let mut found = Vec::new();
        let mut after = Some(StoredId::Uuid(Uuid::nil()));
        while let Some(begin) = after {
            let page = self.shard.stored_places(&search, &begin).await?;
            let is_done = |of: &StoredPlace| {
                let kind = EventKind { model: &of.model_type, name: &of.event_type };
                !unsettled.contains(&of.place.event_id)
                    && wanted
                        .iter()
                        .any(|(wanted, row)| wanted.has(kind) && !is_lacking(row, &retired, of))
            };
            let done: Vec<StoredPlace> = page.places.into_iter().filter(is_done).collect();
            for chunk in done.chunks(CHUNK) {
                let places = chunk.iter().map(|of| (of.place.stream, of.place.model_version));
                let (streams, versions) = places.unzip();
                let open = self.open_among(&filter.handler, streams, versions).await?;
                found.extend(chunk.iter().filter(|of| !open.contains(&of.place.event_id)).cloned());
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
    pub(crate) async fn open_among(
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

    /// The letters that a filter selects, the oldest first.
    pub(crate) async fn find_letters(
        &self,
        filter: &DeliveryFilter,
    ) -> Result<Vec<FoundLetter>, EventsError> {
        let request = PageRequest::first(PAGE).filter(letters_of(filter));
        let mut page = Some(request.order_by(DeadLetter::DIED, Direction::Ascending));
        let mut found = Vec::new();
        while let Some(request) = page {
            let letters = self.dead_letters.page(request).await?;
            let fitting = self.fitting(filter, letters.rows).await?;
            let letters_found =
                fitting.into_iter().map(|row| FoundLetter { id: row.id, place: row.place() });
            found.extend(letters_found);
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

    fn too_many(&self, filter: &DeliveryFilter) -> EventsError {
        let shard = self.shard.identifier();
        EventsError::TooMany { filter: filter.to_string(), most: MOST, shard }
    }
}

/// What a model's id may be stored as: other programs may have ids that only look like UUIDs.
fn spellings(id: &str) -> HashSet<String> {
    let as_uuid = Uuid::parse_str(id).map(|id| id.to_string());
    as_uuid.into_iter().chain([id.to_owned()]).collect()
}

/// The letters that a filter selects, but for the names of events and models, which letters do not
/// have.
pub(crate) fn letters_of(filter: &DeliveryFilter) -> Condition<DeadLetter> {
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

/// Whether a letter is still among those that the filter selects.
pub(crate) fn selects(filter: &DeliveryFilter, state: DeadLetterState) -> bool {
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
            Wanted::Fence | Wanted::Retired | Wanted::Calls => {}
        }
    }
    match chosen {
        Some(chosen) if is_any => Some(HashSet::from([chosen.clone()])),
        Some(chosen) => Some(names.into_iter().filter(|name| name == chosen).collect()),
        None => (!is_any).then_some(names),
    }
}

/// Whether the sweep is still to deliver an event.
fn is_lacking(subscription: &Subscription, retired: &[&Subscription], event: &StoredPlace) -> bool {
    // Where it goes on where it was retired, earlier events had their deliveries.
    let goes_on = retired.iter().find(|of| of.since_date == subscription.since_date);
    let had = |generation: &i64| {
        *generation >= subscription.since
            || goes_on.is_some_and(|retired| (1..retired.since).contains(generation))
    };
    event.fanned_out.filter(had).is_none()
        && subscription.since_date.is_none_or(|date| event.date >= date)
}
