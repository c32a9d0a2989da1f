//! The wrappers of a value: new, stored and changed.
//!
//! A plan accepts only these wrappers, so the compiler ensures that an unchanged value is not staged
//! as an update, that a staged value is not staged again, and that the output of an action has no
//! events.

use std::ops::Deref;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::{Entity, IntoEvents, Model};

/// The dates of a model: creation and last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Dates {
    #[serde(rename = "created_date")]
    pub(crate) created: DateTime<Utc>,
    #[serde(rename = "updated_date")]
    pub(crate) updated: DateTime<Utc>,
}

/// A value that is not stored yet, and the events of its creation.
#[derive(Debug, Clone)]
#[must_use = "a new value is stored only by `add` of a plan or a repository"]
pub struct New<T: Entity> {
    pub(crate) value: T,
    pub(crate) events: Vec<T::Event>,
}

impl<T: Entity> New<T> {
    /// A new value and its events: one event, an option or a vector of events, or `()`.
    #[allow(clippy::self_named_constructors)] // readers expect `New::new`
    pub fn new(value: T, events: impl IntoEvents<T::Event>) -> Self {
        Self { value, events: events.into_events() }
    }

    /// The events that are stored with the value.
    pub fn events(&self) -> &[T::Event] {
        &self.events
    }
}

impl<T: Entity> Deref for New<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// A stored value with its version and, for a model, its dates.
///
/// Two are equal if value, version and dates are. Deserializing one, which returns the output of
/// an earlier call, rejects versions and dates that no row has.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stored<T> {
    pub(crate) value: T,
    pub(crate) version: i64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) dates: Option<Dates>,
}

/// The error of a [`change`](Stored::change), which may be any type. Where the compiler cannot
/// infer it, the change does not fail: use [`apply`](Stored::apply).
pub trait ChangeError {}

impl<E> ChangeError for E {}

impl<T: Entity> Stored<T> {
    /// The version of the row: 1 after the insert, incremented by every update.
    pub fn version(&self) -> i64 {
        self.version
    }

    /// The value alone.
    pub fn into_value(self) -> T {
        self.value
    }

    /// Changes the value with an operation that may fail:
    ///
    /// ```
    /// # use ekbatan_core::domain::*;
    /// # use ekbatan_macros::{Entity, State};
    /// # #[derive(Debug, Clone, State)] pub enum Life { Active }
    /// # #[derive(Debug, Clone, Entity)]
    /// # #[entity(table = "counters")]
    /// # pub struct Counter { pub id: Id<Counter>, pub count: i64, pub state: Life }
    /// # fn increment(counter: Stored<Counter>) -> Result<Changed<Counter>, String> {
    /// counter.change(|counter| {
    ///     counter.count = counter.count.checked_add(1).ok_or("full")?;
    ///     Ok::<_, String>(())
    /// })
    /// # }
    /// ```
    ///
    /// The closure returns the events: one event, an option or a vector of events, or `()`.
    pub fn change<Ev, E>(
        self,
        operation: impl FnOnce(&mut T) -> Result<Ev, E>,
    ) -> Result<Changed<T>, E>
    where
        Ev: IntoEvents<T::Event>,
        E: ChangeError, // a change that cannot fail: use `apply`, without `Ok(..)`
    {
        self.unchanged().change(operation)
    }

    /// Changes the value with an operation that cannot fail.
    pub fn apply<Ev>(self, operation: impl FnOnce(&mut T) -> Ev) -> Changed<T>
    where
        Ev: IntoEvents<T::Event>,
    {
        self.unchanged().apply(operation)
    }

    pub(super) fn unchanged(self) -> Changed<T> {
        Changed {
            id: self.value.id(),
            value: self.value,
            version: self.version,
            dates: self.dates,
            events: Vec::new(),
        }
    }
}

impl<M: Model> Stored<M> {
    /// The time of the insert, in microseconds.
    pub fn created_date(&self) -> DateTime<Utc> {
        self.known_dates().created
    }

    /// The time of the last change, in microseconds.
    pub fn updated_date(&self) -> DateTime<Utc> {
        self.known_dates().updated
    }

    fn known_dates(&self) -> Dates {
        // Every stored model has dates: reads, plans and deserialization see to it.
        self.dates.unwrap_or(Dates { created: DateTime::UNIX_EPOCH, updated: DateTime::UNIX_EPOCH })
    }
}

impl<T> Deref for Stored<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// A stored value after a change, and the events of that change.
#[derive(Debug, Clone)]
#[must_use = "a change is stored only by `update` or `delete` of a plan or a repository"]
pub struct Changed<T: Entity> {
    /// The id that was read. A change must not modify it.
    pub(crate) id: T::Id,
    pub(crate) value: T,
    /// The version that the row must have at the commit.
    pub(crate) version: i64,
    pub(crate) dates: Option<Dates>,
    pub(crate) events: Vec<T::Event>,
}

impl<T: Entity> Changed<T> {
    /// Changes the value again. The events accumulate; the version is still incremented once.
    pub fn change<Ev, E>(
        mut self,
        operation: impl FnOnce(&mut T) -> Result<Ev, E>,
    ) -> Result<Self, E>
    where
        Ev: IntoEvents<T::Event>,
        E: ChangeError, // a change that cannot fail: use `apply`, without `Ok(..)`
    {
        self.events.extend(operation(&mut self.value)?.into_events());
        Ok(self)
    }

    /// Changes the value again with an operation that cannot fail.
    pub fn apply<Ev>(mut self, operation: impl FnOnce(&mut T) -> Ev) -> Self
    where
        Ev: IntoEvents<T::Event>,
    {
        self.events.extend(operation(&mut self.value).into_events());
        self
    }

    /// The version that the row must have at the commit.
    pub fn expected_version(&self) -> i64 {
        self.version
    }

    /// The events that are stored with the value.
    pub fn events(&self) -> &[T::Event] {
        &self.events
    }
}

impl<T: Entity> Deref for Changed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}
