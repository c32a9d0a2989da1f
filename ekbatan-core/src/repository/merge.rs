//! Merges the rows of many shards into one order.

use std::cmp::Ordering;
use std::collections::VecDeque;

use super::page::{Position, Sorting, TextOrder};
use super::scatter::all_beside;
use super::source::{Source, stored};
use super::value_order::{compare, compare_keys};
use super::{PageRequest, ReadError};
use crate::domain::{Entity, Stored, Value};

/// A row's values, in the order of the table's columns.
pub(super) type Row = Vec<Value>;

/// How many rows a stream reads from a shard at a time.
const STREAM_PAGE: usize = 500;

/// The first `size` rows of several ordered pages.
pub(super) fn merge_page(
    pages: Vec<Vec<Row>>,
    sorting: &Sorting,
    texts: TextOrder,
    size: usize,
) -> Vec<Row> {
    let mut rows: Vec<Row> = pages.into_iter().flatten().collect();
    rows.sort_by(|a, b| sorting.compare(texts, a, b));
    rows.truncate(size);
    rows
}

/// Rows ordered by id from any number of shards, read page by page.
pub(super) struct Merged<T> {
    feeds: Vec<Feed<T>>,
}

struct Feed<T> {
    source: Source<T>,
    rows: VecDeque<Row>,
    /// The request for the next page, if there may be one.
    next: Option<PageRequest<T>>,
}

impl<T: Entity> Merged<T> {
    pub(super) fn new(sources: Vec<Source<T>>, first: PageRequest<T>) -> Self {
        let feeds = sources.into_iter().map(|source| Feed {
            source,
            rows: VecDeque::new(),
            next: Some(PageRequest { size: STREAM_PAGE, ..first.clone() }),
        });
        Self { feeds: feeds.collect() }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Stored<T>>, ReadError> {
        self.refill().await?;
        let first = self
            .feeds
            .iter_mut()
            .filter(|feed| !feed.rows.is_empty())
            .min_by(|a, b| compare(&a.rows[0][0], &b.rows[0][0]));
        first.and_then(|feed| feed.rows.pop_front()).map(stored).transpose()
    }

    async fn refill(&mut self) -> Result<(), ReadError> {
        if !self.feeds.iter().any(Feed::is_due) {
            return Ok(());
        }
        // By id alone: long texts are not compared.
        let texts = if self.feeds.len() > 1 { TextOrder::Bytes } else { TextOrder::OfDatabase };
        let (mut due, others): (Vec<_>, Vec<_>) =
            self.feeds.iter_mut().partition(|feed| feed.is_due());
        let others = others.iter().map(|feed| feed.source.shard()).collect();
        let asked = due.iter_mut().filter_map(|feed| {
            let request = feed.next.take()?;
            let source = &feed.source;
            Some(async move {
                let rows = source.page(&request, texts).await;
                let next = rows.as_ref().ok().and_then(|rows| request.following(rows));
                (source.shard(), rows.map(|rows| (rows, next)))
            })
        });
        let pages = all_beside(asked.collect(), others).await?;
        for (feed, (rows, next)) in due.into_iter().zip(pages) {
            feed.rows = rows.into();
            feed.next = next;
        }
        Ok(())
    }
}

impl<T> Feed<T> {
    /// Whether its next page is needed.
    fn is_due(&self) -> bool {
        self.rows.is_empty() && self.next.is_some()
    }
}

impl<T: Entity> PageRequest<T> {
    /// The request for the page after these rows, if there may be one.
    pub(super) fn following(&self, rows: &[Row]) -> Option<Self> {
        let last = rows.last().filter(|_| rows.len() == self.size)?;
        let key = self.sorting().ok().and_then(|sorting| sorting.key);
        Some(self.from(Position {
            key: key.map(|(position, _)| last[position].clone()),
            id: last[0].clone(),
        }))
    }
}

impl Sorting {
    fn compare(&self, texts: TextOrder, a: &Row, b: &Row) -> Ordering {
        let ascending = self
            .key
            .iter()
            .chain([&self.id])
            .map(|(position, _)| compare_keys(texts, &a[*position], &b[*position]))
            .find(|ordering| ordering.is_ne())
            .unwrap_or(Ordering::Equal);
        if self.descending { ascending.reverse() } else { ascending }
    }
}
