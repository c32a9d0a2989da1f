//! The derives of ekbatan. The prelude of `ekbatan` exports them together with the traits
//! that they implement.
//!
//! | Derive | For | Stored as |
//! |---|---|---|
//! | [`Model`](derive@Model) | a struct with events and dates | a row |
//! | [`Entity`](derive@Entity) | a struct without them | a row |
//! | [`Event`](derive@Event) | the enum of a model's events | rows of the outbox |
//! | [`State`](derive@State) | the enum of a row's states | text |
//! | [`Field`](derive@Field) | any other enum, or a newtype | text, or the inner value |
//!
//! All generated code is plain constants and functions: nothing is registered or looked
//! up at run time. A name in the database is spelled out, or derived from the name of a
//! field or variant, never from the name of a type.

mod attributes;
mod column;
mod errors;
mod event;
mod field;
mod header;
mod root;
mod row;
mod state;
mod text_enum;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Derives `Model`: a struct is one row of a table, with events and dates.
///
/// ```
/// use ekbatan_core::domain::{Entity, Id};
/// use ekbatan_macros::{Event, Model, State};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Clone, PartialEq, Model)]
/// #[model(table = "wallets", event = WalletEvent)]
/// pub struct Wallet {
///     pub id: Id<Wallet>,
///     #[column(name = "owner")]
///     pub owner_name: String,
///     #[column(json)]
///     pub limits: Limits,
///     pub state: WalletState,
/// }
///
/// /// Any serde type, stored in one JSON column.
/// #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
/// pub struct Limits {
///     pub daily: i64,
/// }
///
/// #[derive(Debug, Clone, PartialEq, State)]
/// pub enum WalletState {
///     Open,
///     Deleted,
/// }
///
/// #[derive(Debug, Clone, Serialize, Event)]
/// pub enum WalletEvent {
///     #[event(name = "WalletOpened")]
///     Opened { owner_name: String },
/// }
///
/// let columns: Vec<&str> = Wallet::TABLE.columns.iter().map(|column| column.name).collect();
/// assert_eq!(
///     columns,
///     ["id", "owner", "limits", "state", "version", "created_date", "updated_date"]
/// );
/// ```
///
/// The struct must have named fields, no generics, an `id` and a `state`. The framework
/// manages the columns `version`, `created_date` and `updated_date`: the table has them,
/// the struct does not, and `Stored` reads them.
///
/// # On the struct: `#[model(..)]`
///
/// - `table = ".."`: the table, or `"schema.table"`.
/// - `event = WalletEvent`: the enum of its events.
/// - `name = ".."`: the name of the row in the outbox and in errors. Default: the name of
///   the table.
///
/// # On a field: `#[column(..)]`
///
/// - `name = ".."`: the name of the column. Default: the name of the field.
/// - `json`: stores the field as JSON, by its serde traits. `None` is NULL.
///
/// # Constants
///
/// The struct gets a constant for each column, for use in conditions, with the visibility
/// of the field: `Wallet::OWNER_NAME`, `Wallet::VERSION`.
#[proc_macro_derive(Model, attributes(model, column))]
pub fn derive_model(input: TokenStream) -> TokenStream {
    expand(input, |input, root| row::derive(header::RowKind::Model, input, root))
}

/// Derives `Entity`: a struct is one row of a table, without events and dates.
///
/// ```
/// use ekbatan_core::domain::{Entity, Id};
/// use ekbatan_macros::{Entity, State};
///
/// #[derive(Debug, Clone, PartialEq, Entity)]
/// #[entity(table = "billing.counters", name = "Counter")]
/// pub struct Counter {
///     pub id: Id<Counter>,
///     pub count: i64,
///     pub state: Life,
/// }
///
/// #[derive(Debug, Clone, PartialEq, State)]
/// pub enum Life {
///     Active,
/// }
///
/// assert_eq!(Counter::TABLE.full_name(), "billing.counters");
/// assert_eq!(Counter::TABLE.model, "Counter");
/// ```
///
/// This is [`Model`](derive@Model) without `event`, and without the columns
/// `created_date` and `updated_date`. The attribute on the struct is `#[entity(table =
/// "..", name = "..")]`.
#[proc_macro_derive(Entity, attributes(entity, column))]
pub fn derive_entity(input: TokenStream) -> TokenStream {
    expand(input, |input, root| row::derive(header::RowKind::Entity, input, root))
}

/// Derives `Event`: an enum of a model's events, each stored under the name in its
/// attribute.
///
/// ```
/// use ekbatan_core::domain::Event;
/// use ekbatan_macros::Event;
/// use serde::Serialize;
///
/// #[derive(Debug, Clone, Serialize, Event)]
/// pub enum WalletEvent {
///     #[event(name = "WalletMoneyDeposited", version = 2)]
///     MoneyDeposited { amount: i64 },
///     #[event(name = "WalletMoved")]
///     Moved(Moved),
///     #[event(name = "WalletClosed")]
///     Closed,
/// }
///
/// #[derive(Debug, Clone, Serialize)]
/// pub struct Moved {
///     pub to: String,
/// }
///
/// let moved = WalletEvent::Moved(Moved { to: "eu".into() });
/// assert_eq!(moved.event_name().name, "WalletMoved");
/// assert_eq!(moved.payload().unwrap().to_string(), r#"{"to":"eu"}"#);
/// assert_eq!(WalletEvent::Closed.payload().unwrap().to_string(), "{}");
/// ```
///
/// # On a variant: `#[event(..)]`
///
/// - `name = ".."`: the name of the event in the outbox, unique in the enum.
/// - `version = 2`: the version of the payload's shape. Default: 1.
///
/// The payload is a JSON object, written by serde's `Serialize`. A variant therefore has
/// named fields, wraps one struct, or has no data. serde's `tag`, `content`, `untagged`,
/// `into` and `remote` are errors, because name and payload are stored separately.
#[proc_macro_derive(Event, attributes(event))]
pub fn derive_event(input: TokenStream) -> TokenStream {
    expand(input, event::derive)
}

/// Derives `State`: an enum without data is the state of a row.
///
/// ```
/// use ekbatan_core::domain::{SoftDelete, State};
/// use ekbatan_macros::State;
///
/// #[derive(Debug, Clone, PartialEq, State)]
/// pub enum WalletState {
///     Open,
///     PendingReview,
///     #[state(name = "DELETED")]
///     Closed,
/// }
///
/// assert_eq!(WalletState::PendingReview.as_str(), "PENDING_REVIEW");
/// assert_eq!(WalletState::deleted(), WalletState::Closed);
/// ```
///
/// A variant is stored as its name in `SCREAMING_SNAKE_CASE`, or as `#[state(name =
/// "..")]` says, with at most 24 characters. If a variant is stored as `DELETED`, rows
/// can be soft-deleted. Reading a text that no variant has is an error that names the
/// text.
#[proc_macro_derive(State, attributes(state))]
pub fn derive_state(input: TokenStream) -> TokenStream {
    expand(input, state::derive)
}

/// Derives `Field`: an enum without data, or a newtype, fits one column.
///
/// ```
/// use ekbatan_core::domain::{Field, Value};
/// use ekbatan_macros::Field;
///
/// #[derive(Debug, Clone, PartialEq, Field)]
/// pub enum Currency {
///     Euro,
///     #[field(name = "USD")]
///     Dollar,
/// }
///
/// #[derive(Debug, Clone, PartialEq, Field)]
/// pub struct Cents(i64);
///
/// assert_eq!(Currency::Euro.to_value().unwrap(), Value::Text("EURO".into()));
/// assert_eq!(Currency::from_value(Value::Text("USD".into())).unwrap(), Currency::Dollar);
/// assert_eq!(Cents(5).to_value().unwrap(), Value::Int(5));
/// ```
///
/// An enum is stored as text: the name of the variant in `SCREAMING_SNAKE_CASE`, or as
/// `#[field(name = "..")]` says. A struct with one field is stored as its inner value,
/// and conditions can compare it if they can compare the inner value.
#[proc_macro_derive(Field, attributes(field))]
pub fn derive_field(input: TokenStream) -> TokenStream {
    expand(input, field::derive)
}

fn expand(
    input: TokenStream,
    derive: fn(&DeriveInput, &proc_macro2::TokenStream) -> syn::Result<proc_macro2::TokenStream>,
) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    derive(&input, &root::root()).unwrap_or_else(syn::Error::into_compile_error).into()
}
