//! The state of a row: an enum stored as text.

use super::Field;

/// The state of a row: an enum without data. Derive it:
///
/// ```
/// use ekbatan_core::domain::State;
/// use ekbatan_macros::State;
///
/// #[derive(Debug, Clone, PartialEq, State)]
/// pub enum WalletState {
///     Open,
///     #[state(name = "DELETED")]
///     Closed,
/// }
/// assert_eq!(WalletState::Open.as_str(), "OPEN");
/// assert_eq!(WalletState::Closed.as_str(), "DELETED");
/// ```
///
/// A variant is stored as its name in `SCREAMING_SNAKE_CASE` unless `#[state(name = "..")]`
/// sets another name. A row can be soft-deleted if a variant of its state is stored as `DELETED`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a state",
    note = "`state` must be an enum with `#[derive(State)]`"
)]
pub trait State: Field + Clone + Send + Sync + 'static {
    /// The text in the database.
    fn as_str(&self) -> &'static str;
}

/// A state with a variant for deleted rows. `#[derive(State)]` implements it if a variant is stored
/// as `DELETED`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no state that means deleted",
    note = "add a variant that is stored as `DELETED`, for example `Deleted`"
)]
pub trait SoftDelete: State {
    /// The deleted state.
    fn deleted() -> Self;
}
