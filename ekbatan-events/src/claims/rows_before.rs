//! The rows that stand before the candidates of a round. They decide which candidates the round claims.

use std::collections::{HashMap, HashSet};

use ekbatan_core::__private::deliveries::Delivery;
use ekbatan_core::domain::Stored;
use ekbatan_core::repository::{Condition, Direction, PageRequest, Repository};
use futures_util::future::try_join_all;
use uuid::Uuid;

use crate::claims::claimed::{Candidate, StreamKey, place};
use crate::error::EventsError;
use crate::handlers::handler_set::HandlerSet;

/// How many deliveries of one handler and priority a node holds at most.
const HELD: usize = 1_024;

/// How many rows that are neither candidates nor held by the node are read together. If there may be more,
/// each stream is asked by itself.
const OBSTACLES: usize = 512;

/// Of how many names of streams the rows are read together. A statement has three arguments for each, and SQLite
/// takes 32,766 of them.
const NAMES: usize = 1_000;

/// How many streams are asked at a time, each by itself.
const AT_A_TIME: usize = 4;

/// Rows by their streams, each sorted by their places.
pub(crate) type RowsOfStreams = HashMap<StreamKey, Vec<Stored<Delivery>>>;

/// Reads the rows of streams up to their last candidates.
pub(crate) struct RowsBefore<'r> {
    pub(crate) deliveries: &'r Repository<Delivery>,
    pub(crate) handlers: &'r HandlerSet,
    /// The deliveries that this node holds.
    pub(crate) held: &'r HashSet<Uuid>,
}

/// What is read of a stream.
struct Wanted {
    stream: StreamKey,
    /// The stored names of the handler.
    names: Vec<String>,
    /// The version of the last candidate.
    up_to: i64,
    candidates: usize,
}

impl RowsBefore<'_> {
    /// Reads them, and sorts the candidates by their places.
    pub(crate) async fn read(
        &self,
        streams: &mut HashMap<StreamKey, Vec<Candidate>>,
    ) -> Result<RowsOfStreams, EventsError> {
        let wanted = streams.iter_mut().filter_map(|(stream, candidates)| {
            candidates.sort_by_key(|(_, row)| place(row));
            let (handler, last) = candidates.last()?;
            Some(Wanted {
                stream: *stream,
                names: handler.names(),
                up_to: last.model_version,
                candidates: candidates.len(),
            })
        });
        let wanted: Vec<Wanted> = wanted.collect();
        let mut found = match self.together(&wanted).await? {
            Some(found) => found,
            None => self.one_by_one(&wanted).await?,
        };
        found.values_mut().for_each(|rows| rows.sort_by_key(|row| place(row)));
        Ok(found)
    }

    /// `None` if there may be more rows than are read.
    async fn together(&self, wanted: &[Wanted]) -> Result<Option<RowsOfStreams>, EventsError> {
        let candidates: usize = wanted.iter().map(|one| one.candidates).sum();
        let most = whole(OBSTACLES + candidates + self.held.len());
        let bounds =
            wanted.iter().flat_map(|Wanted { stream: (_, stream), names, up_to, .. }| {
                names.iter().map(move |name| (*stream, name.clone(), *up_to))
            });
        let bounds: Vec<_> = bounds.collect();
        let columns = (Delivery::STREAM, Delivery::HANDLER, Delivery::MODEL_VERSION);
        let mut found = RowsOfStreams::new();
        for bounds in bounds.chunks(NAMES) {
            let any = Condition::up_to_any(columns, bounds.iter().cloned(), most);
            let page = PageRequest::first(most).filter(any).by_index();
            let rows = self.deliveries.page(page).await?.rows;
            if rows.len() == most {
                return Ok(None);
            }
            for row in rows {
                let Some(handler) = self.handlers.get(&row.handler) else { continue };
                found.entry((handler.name, row.stream)).or_default().push(row);
            }
        }
        Ok(Some(found))
    }

    async fn one_by_one(&self, wanted: &[Wanted]) -> Result<RowsOfStreams, EventsError> {
        let mut found = RowsOfStreams::new();
        for some in wanted.chunks(AT_A_TIME) {
            let rows = try_join_all(some.iter().map(async |one| self.first_of(one).await)).await?;
            found.extend(some.iter().map(|one| one.stream).zip(rows));
        }
        Ok(found)
    }

    /// As many of the first rows of a stream as decide what can be claimed of it.
    async fn first_of(&self, wanted: &Wanted) -> Result<Vec<Stored<Delivery>>, EventsError> {
        let size = whole(wanted.candidates + self.held.len().min(HELD) + 1);
        let up_to = Delivery::STREAM.eq(wanted.stream.1)
            & Delivery::HANDLER.is_in(wanted.names.clone())
            & Delivery::MODEL_VERSION.le(wanted.up_to);
        let request = PageRequest::first(size)
            .by_index()
            .filter(up_to.clone())
            .order_by(Delivery::MODEL_VERSION, Direction::Ascending);
        let mut rows = self.deliveries.page(request).await?.rows;
        // Of the last version there may be more events, and earlier ones.
        if let Some(last) = rows.last().filter(|_| rows.len() == size) {
            let version = last.model_version;
            let request = PageRequest::first(size)
                .by_index()
                .filter(up_to & Delivery::MODEL_VERSION.eq(version))
                .order_by(Delivery::EVENT_INDEX, Direction::Ascending);
            rows.retain(|row| row.model_version < version);
            rows.extend(self.deliveries.page(request).await?.rows);
        }
        Ok(rows)
    }
}

/// A size of a page. There are few, because each is a statement of its own.
fn whole(size: usize) -> usize {
    size.next_power_of_two()
}
