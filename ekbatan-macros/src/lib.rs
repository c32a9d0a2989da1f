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

// The examples are in files, which `tests/macros` runs. Here they would belong to the process of the compiler, for
// which Cargo would build `ekbatan-core` once more.
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
#[cfg_attr(not(doctest), doc = include_str!("../docs/model.md"))]
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
#[cfg_attr(not(doctest), doc = include_str!("../docs/entity.md"))]
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
#[cfg_attr(not(doctest), doc = include_str!("../docs/event.md"))]
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
#[cfg_attr(not(doctest), doc = include_str!("../docs/state.md"))]
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
#[cfg_attr(not(doctest), doc = include_str!("../docs/field.md"))]
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
