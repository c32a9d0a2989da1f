//! What the framework knows about a value: whether it is new, stored or changed.
//!
//! The three wrappers are the only way into a plan, so that the compiler sees what a
//! reviewer would have to: what was not changed cannot be staged as an update, what was
//! staged cannot be staged again, and what comes out of an action carries no events.

use std::ops::Deref;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{Entity, IntoEvents, Model, SoftDelete};

/// When a model was created and last changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dates {
    #[serde(rename = "created_date")]
    pub(crate) created: DateTime<Utc>,
    #[serde(rename = "updated_date")]
    pub(crate) updated: DateTime<Utc>,
}

/// A value that no database has seen yet, and the events of its making.
#[derive(Debug, Clone)]
#[must_use = "a new value is stored only by `plan.add`"]
pub struct New<T: Entity> {
    pub(crate) value: T,
    pub(crate) events: Vec<T::Event>,
}

impl<T: Entity> New<T> {
    /// A new value and what is to be told about it: an event, an option or a vector of
    /// them, or `()`.
    #[allow(clippy::self_named_constructors)] // `New::new` is what everyone will try first
    pub fn new(value: T, events: impl IntoEvents<T::Event>) -> Self {
        Self { value, events: events.into_events() }
    }

    /// The events that will be stored with it.
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

/// A value as a database holds it: with its version and, for a model, its dates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stored<T> {
    pub(crate) value: T,
    pub(crate) version: i64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) dates: Option<Dates>,
}

impl<T: Entity> Stored<T> {
    /// The version of the row: 1 when it is added, one more with every update.
    pub fn version(&self) -> i64 {
        self.version
    }

    /// The value alone.
    pub fn into_value(self) -> T {
        self.value
    }

    /// Changes the value by a business operation that may refuse:
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
    /// The closure answers what happened: one event, an option or a vector of them, or `()`.
    pub fn change<Ev, E>(
        self,
        operation: impl FnOnce(&mut T) -> Result<Ev, E>,
    ) -> Result<Changed<T>, E>
    where
        Ev: IntoEvents<T::Event>,
    {
        self.unchanged().change(operation)
    }

    /// Changes the value by an operation that cannot refuse.
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
    /// When the model was added, to the microsecond.
    pub fn created_date(&self) -> DateTime<Utc> {
        self.known_dates().created
    }

    /// When the model was last changed, to the microsecond.
    pub fn updated_date(&self) -> DateTime<Utc> {
        self.known_dates().updated
    }

    fn known_dates(&self) -> Dates {
        // A stored model was read from columns that are never null or was dated by the
        // plan; only a hand-made document can lack them, and that has no date to tell.
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
    /// The id under which the value was read: a change may not move it.
    pub(crate) id: T::Id,
    pub(crate) value: T,
    /// The version that the row must still have.
    pub(crate) version: i64,
    pub(crate) dates: Option<Dates>,
    pub(crate) events: Vec<T::Event>,
}

impl<T: Entity> Changed<T> {
    /// Changes it further. The events add up; the version still grows by one.
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

    /// Changes it further by an operation that cannot refuse.
    pub fn apply<Ev>(mut self, operation: impl FnOnce(&mut T) -> Ev) -> Self
    where
        Ev: IntoEvents<T::Event>,
    {
        self.events.extend(operation(&mut self.value).into_events());
        self
    }

    /// The version that the row must still have when this is stored.
    pub fn expected_version(&self) -> i64 {
        self.version
    }

    /// The events that will be stored with it.
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

/// What `plan.delete` takes: a stored value, or a changed one whose events say why.
pub trait Deletable<T: Entity>: Deletion<T> {}

/// The half of [`Deletable`] that only the crate can call or implement.
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
