//! `derive(Event)`: what a model says about its changes, under names that are written down.
//!
//! The name and version live in columns of their own, and the payload is what serde finds
//! inside the variant. That is why the enum keeps serde's plain, external tagging.

use proc_macro2::TokenStream;
use quote::quote;
use syn::punctuated::Punctuated;
use syn::{Attribute, Data, DeriveInput, Fields, Ident, LitStr, Meta, Token, Variant};

use crate::attributes::{Keys, refuse_generics};
use crate::errors::Errors;

/// serde's ways to put something else than the variant's fields into the payload.
const REFUSED_OF_SERDE: [&str; 5] = ["tag", "content", "untagged", "into", "remote"];

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
            format!("a model's events are an enum, one variant each: `enum {ident} {{ #[event(name = \"..\")] Happened {{ .. }} }}`"),
        );
        return errors.finish(TokenStream::new());
    };
    refuse_generics("Event", input, &mut errors);
    refuse_tagging(&input.attrs, &mut errors);
    if data.variants.is_empty() {
        errors.at(
            ident,
            format!("`{ident}` has no variant; for rows without events derive `Entity` instead of `Model`"),
        );
    }

    let mut events: Vec<Named> = Vec::new();
    for variant in &data.variants {
        refuse_tagging(&variant.attrs, &mut errors);
        refuse_lists(variant, &mut errors);
        let Some(event) = read(variant, &mut errors) else { continue };
        match events.iter().find(|earlier| earlier.name.value() == event.name.value()) {
            Some(earlier) => errors.at(
                &event.name,
                format!("`{}` is already the name of `{}`", event.name.value(), earlier.variant),
            ),
            None => events.push(event),
        }
    }
    errors.finish(code(ident, &events, root))
}

/// The name and version of one variant.
fn read<'a>(variant: &'a Variant, errors: &mut Errors) -> Option<Named<'a>> {
    let keys = Keys::read(&variant.attrs, "event", &["name", "version"], errors);
    let version = match keys.integer("version", errors) {
        Some(written) => match written.base10_parse::<i32>() {
            Ok(version) if version >= 1 => version,
            _ => {
                errors.at(&written, format!("`version` is between 1 and {}", i32::MAX));
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

fn refuse_tagging(attributes: &[Attribute], errors: &mut Errors) {
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        // What does not parse is for serde to refuse.
        let metas = attribute
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .unwrap_or_default();
        for meta in metas {
            if let Some(key) = REFUSED_OF_SERDE.iter().find(|key| meta.path().is_ident(key)) {
                errors.at(
                    &meta,
                    format!("an event does not take `#[serde({key})]`: the framework stores the event's name in its own column, and the variant's fields as the payload; remove it"),
                );
            }
        }
    }
}

/// A payload is a JSON object: no fields, named fields, or one value that is an object.
fn refuse_lists(variant: &Variant, errors: &mut Errors) {
    if let Fields::Unnamed(fields) = &variant.fields
        && fields.unnamed.len() != 1
    {
        errors.at(
            fields,
            format!(
                "`{}` would be stored as a JSON list; name its fields, `{0} {{ .. }}`, or wrap one struct, `{0}(Details)`",
                variant.ident
            ),
        );
    }
}

fn code(ident: &Ident, events: &[Named], root: &TokenStream) -> TokenStream {
    let names: Vec<TokenStream> = events
        .iter()
        .map(|Named { name, version, .. }| {
            quote!(#root::domain::EventName { name: #name, version: #version })
        })
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
                #root::domain::payload_of(#root::domain::Event::event_name(self), self)
            }
        }
    }
}
