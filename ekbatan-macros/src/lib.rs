//! The derives of ekbatan.

mod attributes;
mod column;
mod errors;
mod event;
mod field;
mod root;
mod row;
mod state;
mod text_enum;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Model.
#[proc_macro_derive(Model, attributes(model, column))]
pub fn derive_model(input: TokenStream) -> TokenStream {
    expand(input, |input, root| row::derive(row::Kind::Model, input, root))
}

/// Entity.
#[proc_macro_derive(Entity, attributes(entity, column))]
pub fn derive_entity(input: TokenStream) -> TokenStream {
    expand(input, |input, root| row::derive(row::Kind::Entity, input, root))
}

/// Event.
#[proc_macro_derive(Event, attributes(event))]
pub fn derive_event(input: TokenStream) -> TokenStream {
    expand(input, event::derive)
}

/// State.
#[proc_macro_derive(State, attributes(state))]
pub fn derive_state(input: TokenStream) -> TokenStream {
    expand(input, state::derive)
}

/// Field.
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
