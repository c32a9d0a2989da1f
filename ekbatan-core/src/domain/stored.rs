//! The wrappers of a value: new, stored and changed.
//!
//! A plan accepts only these wrappers, so the compiler ensures that an unchanged value is not staged
//! as an update, that a staged value is not staged again, and that the output of an action has no
//! events.

use std::ops::Deref;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{Entity, IntoEvents, Model, SoftDelete};

/// The dates of a model: creation and last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dates {
    #[serde(rename = "created_date")]
    pub(crate) created: DateTime<Utc>,
    #[serde(rename = "updated_date")]
    pub(crate) updated: DateTime<Utc>,
}

/// A value that is not stored yet, and the events of its creation.
#[derive(Debug, Clone)]
#[must_use = "a new value is stored only by `plan.add`"]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stored<T> {
    pub(crate) value: T,
    pub(crate) version: i64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) dates: Option<Dates>,
}

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

    fn unchanged(self) -> Changed<T> {
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
        // The dates come from columns that are not null, or from the plan. They are missing only in
        // a value that was deserialized from other JSON.
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
#[must_use = "a change is stored only by `plan.update`"]
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

/// The argument of `plan.delete`: a stored value, or a changed one with the events of the deletion.
pub trait Deletable<T: Entity>: Deletion<T> {}

/// The private part of [`Deletable`], which seals it.
pub trait Deletion<T: Entity> {
    /// The change that deletes.
    fn into_deletion(self) -> Changed<T>;
}

impl<T: Entity> Deletion<T> for Stored<T>
where
    T::State: SoftDelete,
{
    fn into_deletion(self) -> Changed<T> {
        self.unchanged().into_deletion()
    }
}

impl<T: Entity> Deletion<T> for Changed<T>
where
    T::State: SoftDelete,
{
    fn into_deletion(mut self) -> Changed<T> {
        self.value.set_state(SoftDelete::deleted());
        self
    }
}

impl<T: Entity> Deletable<T> for Stored<T> where T::State: SoftDelete {}
impl<T: Entity> Deletable<T> for Changed<T> where T::State: SoftDelete {}
