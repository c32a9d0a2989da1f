//! What a plan and a repository accept: new rows, changed rows, and rows to delete.
//!
//! Each is a trait with the implementations below and no others, so that the compiler can say what
//! to write instead of a value that is none of them.

use super::{Changed, Entity, New, SoftDelete, Stored};

/// The argument of `plan.add`: a [`New`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be added, because it is no `New`",
    label = "expected `New<..>`",
    note = "write `New::new(value, event)`, or `New::new(value, ())` for a value without events",
    note = "a row that is stored already is changed, and the change goes to `update`"
)]
pub trait Addable<T: Entity>: Addition<T> {}

/// The private part of [`Addable`], which seals it.
pub trait Addition<T: Entity> {
    /// The new value.
    fn into_new(self) -> New<T>;
}

impl<T: Entity> Addition<T> for New<T> {
    fn into_new(self) -> New<T> {
        self
    }
}

impl<T: Entity> Addable<T> for New<T> {}

/// The argument of `plan.update`: a [`Changed`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be updated, because it is no `Changed`",
    label = "expected `Changed<..>`",
    note = "change a stored row first: `stored.change(|row| ..)?`, or `stored.apply(|row| ..)` if the change cannot fail",
    note = "`change` returns a `Result`; take the change out of it with `?`"
)]
pub trait Updatable<T: Entity>: Update<T> {}

/// The private part of [`Updatable`], which seals it.
pub trait Update<T: Entity> {
    /// The change.
    fn into_changed(self) -> Changed<T>;
}

impl<T: Entity> Update<T> for Changed<T> {
    fn into_changed(self) -> Changed<T> {
        self
    }
}

impl<T: Entity> Updatable<T> for Changed<T> {}

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
