//! The derives of ekbatan. Users find them in the facade's prelude, beside the traits that
//! they implement.
//!
//! | Derive | For | Stored as |
//! |---|---|---|
//! | [`Model`](derive@Model) | a struct with events and dates | a row |
//! | [`Entity`](derive@Entity) | a struct without them | a row |
//! | [`Event`](derive@Event) | the enum of a model's events | rows of the outbox |
//! | [`State`](derive@State) | the enum that is the `state` of a row | text |
//! | [`Field`](derive@Field) | any other enum, or a newtype, in a row | text, or what it wraps |
//!
//! Everything generated is a plain constant or a plain function: nothing is registered, and
//! nothing is looked up while the program runs. Names in the database are written down or
//! follow from a field's or a variant's name, never from a type's.

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

/// A struct that is one row of one table, with events and dates.
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
/// The struct has named fields, no generics, an `id` and a `state`. The columns `version`,
/// `created_date` and `updated_date` are the framework's: a row has them, the struct does
/// not, and `Stored` reads them.
///
/// # On the struct: `#[model(..)]`
///
/// - `table = ".."`: the table, or `"schema.table"`.
/// - `event = WalletEvent`: the enum of its events.
/// - `name = ".."`: the name under which the outbox and errors speak of it; the table's
///   name unless given.
///
/// # On a field: `#[column(..)]`
///
/// - `name = ".."`: the column, if it is not named as the field.
/// - `json`: stores the field as JSON by its serde traits. `None` is NULL.
///
/// # Constants
///
/// Each column is a constant of the struct for use in conditions, as visible as its field:
/// `Wallet::OWNER_NAME`, `Wallet::VERSION`.
#[proc_macro_derive(Model, attributes(model, column))]
pub fn derive_model(input: TokenStream) -> TokenStream {
    expand(input, |input, root| row::derive(header::Kind::Model, input, root))
}

/// A struct that is one row of one table, without events and dates.
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
/// It is [`Model`](derive@Model) without `event`, and without the columns `created_date`
/// and `updated_date`. The attribute on the struct is `#[entity(table = "..", name = "..")]`.
#[proc_macro_derive(Entity, attributes(entity, column))]
pub fn derive_entity(input: TokenStream) -> TokenStream {
    expand(input, |input, root| row::derive(header::Kind::Entity, input, root))
}

/// The events of a model, one variant each, stored under the name that is written on it.
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
/// - `name = ".."`: the event's name in the outbox, unique in the enum.
/// - `version = 2`: the version of the payload's shape; 1 unless given.
///
/// The payload is a JSON object, by serde's `Serialize`: a variant has named fields, wraps
/// one struct or has no data. serde's `tag`, `content`, `untagged`, `into` and `remote` are
/// refused on the enum, because name and payload are stored apart.
#[proc_macro_derive(Event, attributes(event))]
pub fn derive_event(input: TokenStream) -> TokenStream {
    expand(input, event::derive)
}

/// The state of a row, as an enum without data.
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
/// A variant is stored as its name in `SCREAMING_SNAKE_CASE`, or as `#[state(name = "..")]`
/// says, in 24 characters at most. If one is stored as `DELETED`, rows with this state can
/// be soft-deleted. A text in the database that no variant has is an error that names it.
#[proc_macro_derive(State, attributes(state))]
pub fn derive_state(input: TokenStream) -> TokenStream {
    expand(input, state::derive)
}

/// A type of the user's own that fits one column: an enum without data, or a newtype.
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
/// An enum is stored as text: a variant's name in `SCREAMING_SNAKE_CASE`, or what
/// `#[field(name = "..")]` says. A struct with one field is stored as what it wraps, and
/// can be compared in conditions where that can.
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
