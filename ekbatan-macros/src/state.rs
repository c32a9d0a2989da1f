//! `derive(State)`: the state of a row, as text in a column of 24 characters.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput};

use crate::attributes::{Keys, reject_generics};
use crate::errors::Errors;
use crate::text_enum::TextEnum;

/// The size of a `state varchar(24)` column.
const MAX_STATE_CHARS: usize = 24;

/// The text that marks a row as deleted.
const DELETED: &str = "DELETED";

pub(crate) fn derive(input: &DeriveInput, root: &TokenStream) -> syn::Result<TokenStream> {
    let ident = &input.ident;
    let mut errors = Errors::default();
    let Data::Enum(data) = &input.data else {
        errors.at(
            ident,
            format!("a state must be an enum without data: `enum {ident} {{ Open, Deleted }}`"),
        );
        return errors.finish(TokenStream::new());
    };
    reject_generics("State", input, &mut errors);
    Keys::read(&input.attrs, "state", &[], &mut errors);
    let states = TextEnum::read(ident, data, "state", Some(MAX_STATE_CHARS), &mut errors);

    for (variant, text) in states.variants() {
        if text != DELETED && text.trim_end().eq_ignore_ascii_case(DELETED) {
            errors.at(
                variant,
                format!(
                    "some databases take `{text}` for `{DELETED}` and hide its rows; store it as `{DELETED}`, or under another name"
                ),
            );
        }
    }

    let field_impls = states.field_impls(root);
    let text_of_self = states.text_of_self();
    let soft_delete = states.variant(DELETED).map(|deleted| {
        quote! {
            #[automatically_derived]
            impl #root::domain::SoftDelete for #ident {
                fn deleted() -> Self {
                    Self::#deleted
                }
            }
        }
    });
    errors.finish(quote! {
        #field_impls

        #[automatically_derived]
        impl #root::domain::State for #ident {
            fn as_str(&self) -> &'static ::core::primitive::str {
                #text_of_self
            }
        }

        #soft_delete
    })
}
