//! Pages by key. A page starts after the last row of the page before it, so rows that are added in
//! between do not shift it.

use crate::domain::{Entity, Field, FieldError, Stored, Value, ValueType};

use super::{Column, Condition};

/// The order of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// From the smallest.
    #[default]
    Ascending,
    /// From the largest.
    Descending,
}

/// By what a page orders texts and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextOrder {
    /// As the database does. The page is of one database.
    OfDatabase,
    /// By their bytes. The page is merged with pages of other databases, whose collations may differ.
    Bytes,
    /// By their first bytes, because one of the databases sorts by no more.
    FirstBytes,
}

/// The start of a page: the order key and the id of the row before it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Position {
    pub(super) key: Option<Value>,
    pub(super) id: Value,
}

/// The order of a page: the requested column, then the id.
pub(super) struct Sorting {
    /// The index of the requested column in the table, and its type.
    pub(super) key: Option<(usize, ValueType)>,
    /// The same of the id.
    pub(super) id: (usize, ValueType),
    pub(super) descending: bool,
}

/// A request for one page.
pub struct PageRequest<T> {
    pub(super) condition: Condition<T>,
    pub(super) order: Option<(&'static str, ValueType)>,
    pub(super) direction: Direction,
    pub(super) size: usize,
    pub(super) after: Option<Position>,
    pub(super) by_index: bool,
}

impl<T: Entity> PageRequest<T> {
    /// The first page of all rows, ordered by id. Ids of UUID v7 are in the order of creation.
    pub fn first(size: usize) -> Self {
        Self {
            condition: Condition::all(),
            order: None,
            direction: Direction::Ascending,
            // What every database takes as a limit.
            size: size.clamp(1, i64::MAX as usize),
            after: None,
            by_index: false,
        }
    }

    /// Restricts the page to rows that match a condition.
    #[must_use]
    pub fn filter(mut self, condition: Condition<T>) -> Self {
        self.condition = condition;
        self
    }

    /// Orders by a column, then by id. Null is less than every value, on every database.
    #[must_use]
    pub fn order_by<F: Field + crate::domain::Comparable>(
        mut self,
        column: Column<T, F>,
        direction: Direction,
    ) -> Self {
        self.order = Some((column.name(), F::TYPE));
        self.direction = direction;
        self
    }

    /// Has PostgreSQL use an index, also if it takes the table for so small that a scan would do: always for the
    /// first such page of a session, and then once a page has been slow.
    #[doc(hidden)]
    #[must_use]
    pub fn by_index(mut self) -> Self {
        self.by_index = true;
        self
    }

    pub(super) fn sorting(&self) -> Result<Sorting, FieldError> {
        let find = |(name, ty)| {
            let position = T::TABLE.columns.iter().position(|column| column.name == name);
            let unknown = || FieldError::new("the table has no such column").at(name);
            Ok((position.ok_or_else(unknown)?, ty))
        };
        Ok(Sorting {
            key: self.order.map(find).transpose()?,
            id: (0, ValueType::Uuid),
            descending: self.direction == Direction::Descending,
        })
    }

    pub(super) fn from(&self, after: Position) -> Self {
        Self {
            condition: self.condition.clone(),
            order: self.order,
            direction: self.direction,
            size: self.size,
            after: Some(after),
            by_index: self.by_index,
        }
    }
}

impl<T> Clone for PageRequest<T> {
    fn clone(&self) -> Self {
        Self {
            condition: self.condition.clone(),
            order: self.order,
            direction: self.direction,
            size: self.size,
            after: self.after.clone(),
            by_index: self.by_index,
        }
    }
}

/// One page of rows.
#[derive(Debug)]
#[non_exhaustive]
pub struct Page<T> {
    /// The rows.
    pub rows: Vec<Stored<T>>,
    /// The request for the next page, if there may be one.
    pub next: Option<PageRequest<T>>,
}

impl<T> Page<T> {
    /// The first `most` rows. Empty if `most` is 0, although a page has room for at least one.
    #[doc(hidden)]
    pub fn at_most(self, most: usize) -> Vec<Stored<T>> {
        self.rows.into_iter().take(most).collect()
    }
}

impl<T> std::fmt::Debug for PageRequest<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageRequest")
            .field("order", &self.order)
            .field("direction", &self.direction)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}
