//! Pages by key: each begins where the one before it ended, however the table has grown.

use crate::domain::{Entity, Field, FieldError, Stored, Value, ValueType};

use super::{Column, Condition};

/// Which way a page goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// From the least.
    #[default]
    Ascending,
    /// From the greatest.
    Descending,
}

/// Where a page begins: the order key and the id of the row before it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Position {
    pub(super) key: Option<Value>,
    pub(super) id: Value,
}

/// By what a page is ordered: the column that was asked for, and the id.
pub(super) struct Sorting {
    /// Where each stands in the table, and its type.
    pub(super) keys: Vec<(usize, ValueType)>,
    /// What a row after the position is to the position.
    pub(super) operator: &'static str,
    /// As `ORDER BY` says it.
    pub(super) order: &'static str,
    pub(super) descending: bool,
}

/// What a page is to hold.
pub struct PageRequest<T> {
    pub(super) condition: Condition<T>,
    pub(super) order: Option<(&'static str, ValueType)>,
    pub(super) direction: Direction,
    pub(super) size: usize,
    pub(super) after: Option<Position>,
}

impl<T: Entity> PageRequest<T> {
    /// The first page of all rows, by id: for UUID v7 in the order of their making.
    pub fn first(size: usize) -> Self {
        Self {
            condition: Condition::all(),
            order: None,
            direction: Direction::Ascending,
            size: size.max(1),
            after: None,
        }
    }

    /// Only rows that fulfil this.
    #[must_use]
    pub fn filter(mut self, condition: Condition<T>) -> Self {
        self.condition = condition;
        self
    }

    /// Ordered by a column that is never null, and by id where it is equal.
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

    pub(super) fn sorting(&self) -> Result<Sorting, FieldError> {
        let mut keys = Vec::with_capacity(2);
        if let Some((name, ty)) = self.order {
            let position = T::TABLE.columns.iter().position(|column| column.name == name);
            let unknown = || FieldError::new("the table has no such column").at(name);
            keys.push((position.ok_or_else(unknown)?, ty));
        }
        keys.push((0, ValueType::Uuid));
        let (operator, order, descending) = match self.direction {
            Direction::Ascending => (">", "ASC", false),
            Direction::Descending => ("<", "DESC", true),
        };
        Ok(Sorting { keys, operator, order, descending })
    }

    pub(super) fn from(&self, after: Position) -> Self {
        Self {
            condition: self.condition.clone(),
            order: self.order,
            direction: self.direction,
            size: self.size,
            after: Some(after),
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
        }
    }
}

/// One page.
pub struct Page<T> {
    /// The rows.
    pub rows: Vec<Stored<T>>,
    /// What to ask for next, if there may be more.
    pub next: Option<PageRequest<T>>,
}
