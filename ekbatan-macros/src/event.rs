//! `derive(Event)`: an enum of events, stored under the names that its attributes spell
//! out.
//!
//! Name and version have their own columns, and the payload is what serde writes inside
//! the variant. The enum must therefore keep serde's default, external tagging.

use proc_macro2::TokenStream;
use quote::quote;
use syn::punctuated::Punctuated;
use syn::{Attribute, Data, DeriveInput, Fields, Ident, LitStr, Meta, Token, Variant};

use crate::attributes::{Keys, reject_generics};
use crate::errors::Errors;

/// The serde attributes that change what the payload contains.
const FORBIDDEN_SERDE_KEYS: [&str; 5] = ["tag", "content", "untagged", "into", "remote"];

struct Named<'a> {
    variant: &'a Ident,
    name: LitStr,
    version: i32,
}

pub(crate) fn derive(input: &DeriveInput, root: &TokenStream) -> syn::Result<TokenStream> {
    let ident = &input.ident;
    let mut errors = Errors::default();
    let Data::Enum(data) = &input.data else {
        errors.at(
            ident,
            format!("the events of a model must be an enum with one variant each: `enum {ident} {{ #[event(name = \"..\")] Happened {{ .. }} }}`"),
        );
        return errors.finish(TokenStream::new());
    };
    reject_generics("Event", input, &mut errors);
    Keys::read(&input.attrs, "event", &[], &mut errors);
    reject_tagging(&input.attrs, &mut errors);
    if data.variants.is_empty() {
        errors.at(
            ident,
            format!("`{ident}` has no variants; derive `Entity` instead of `Model` for rows without events"),
        );
    }

    let mut events: Vec<Named> = Vec::new();
    for variant in &data.variants {
        reject_tagging(&variant.attrs, &mut errors);
        reject_lists(variant, &mut errors);
        let Some(event) = read(variant, &mut errors) else { continue };
        match events.iter().find(|earlier| earlier.name.value() == event.name.value()) {
            Some(earlier) => errors.at(
                &event.name,
                format!(
                    "`{}` already has the name `{}`; choose another one",
                    earlier.variant,
                    event.name.value()
                ),
            ),
            None => events.push(event),
        }
    }
    errors.finish(code(ident, &events, root))
}

/// Reads the name and version of one variant.
fn read<'a>(variant: &'a Variant, errors: &mut Errors) -> Option<Named<'a>> {
    let keys = Keys::read(&variant.attrs, "event", &["name", "version"], errors);
    let version = match keys.integer("version", errors) {
        Some(written) => match written.base10_parse::<i32>() {
            Ok(version) if version >= 1 => version,
            _ => {
                errors.at(&written, format!("`version` must be between 1 and {}", i32::MAX));
                1
            }
        },
        None => 1,
    };
    if keys.get("name").is_none() {
        errors.at(
            &variant.ident,
            format!(
                "`{0}` has no name in the database; add `#[event(name = \"{0}\")]`",
                variant.ident
            ),
        );
    }
    let name = keys.name("name", errors)?;
    Some(Named { variant: &variant.ident, name, version })
}

fn reject_tagging(attributes: &[Attribute], errors: &mut Errors) {
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        // serde reports what does not parse.
        let metas = attribute
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .unwrap_or_default();
        for meta in metas {
            if let Some(key) = FORBIDDEN_SERDE_KEYS.iter().find(|key| meta.path().is_ident(key)) {
                errors.at(
                    &meta,
                    format!("an event cannot have `#[serde({key})]`, because the name has its own column and the fields are the payload; remove it"),
                );
            }
        }
    }
}

/// A payload is a JSON object: of a variant without fields, with named fields, or with
/// one struct.
fn reject_lists(variant: &Variant, errors: &mut Errors) {
    if let Fields::Unnamed(fields) = &variant.fields
        && fields.unnamed.len() != 1
    {
        errors.at(
            fields,
            format!(
                "`{}` would be stored as a JSON array; name its fields, `{0} {{ .. }}`, or wrap one struct, `{0}(Details)`",
                variant.ident
            ),
        );
    }
}

fn code(ident: &Ident, events: &[Named], root: &TokenStream) -> TokenStream {
    let names: Vec<TokenStream> = events
        .iter()
        .map(|Named { name, version, .. }| quote!(#root::domain::EventName::new(#name, #version)))
        .collect();
    let variants = events.iter().map(|event| event.variant);
    quote! {
        #[automatically_derived]
        impl #root::domain::Event for #ident {
            const NAMES: &'static [#root::domain::EventName] = &[#(#names),*];

            fn event_name(&self) -> #root::domain::EventName {
                match self {
                    #(Self::#variants { .. } => #names,)*
                }
            }

            fn payload(
                &self,
            ) -> ::core::result::Result<
                #root::__private::serde_json::Value,
                #root::domain::PayloadError,
            > {
                #root::__private::payload_of(#root::domain::Event::event_name(self), self)
            }
        }
    }
}
