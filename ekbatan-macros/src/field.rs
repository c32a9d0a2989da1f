//! `derive(Field)`: an enum without data is stored as text, a newtype as its inner value.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DataStruct, DeriveInput, Member, Type};

use crate::attributes::{Keys, reject_generics};
use crate::errors::Errors;
use crate::text_enum::TextEnum;

pub(crate) fn derive(input: &DeriveInput, root: &TokenStream) -> syn::Result<TokenStream> {
    let ident = &input.ident;
    let mut errors = Errors::default();
    reject_generics("Field", input, &mut errors);
    Keys::read(&input.attrs, "field", &[], &mut errors);
    let code = match &input.data {
        Data::Enum(data) => {
            TextEnum::read(ident, data, "field", None, &mut errors).field_impls(root)
        }
        Data::Struct(data) => newtype(input, data, root, &mut errors),
        Data::Union(_) => {
            errors.at(ident, "a field must be an enum without data or a struct with one field");
            TokenStream::new()
        }
    };
    errors.finish(code)
}

fn newtype(
    input: &DeriveInput,
    data: &DataStruct,
    root: &TokenStream,
    errors: &mut Errors,
) -> TokenStream {
    let ident = &input.ident;
    let members: Vec<Member> = data.fields.members().collect();
    let (Some(field), [member]) = (data.fields.iter().next(), members.as_slice()) else {
        errors.at(
            ident,
            format!(
                "`{ident}` has {} fields, but a column stores one value; wrap one value, or derive serde's traits and mark the row's field `#[column(json)]`",
                members.len()
            ),
        );
        return TokenStream::new();
    };
    Keys::read(&field.attrs, "field", &[], errors);
    let wrapped = &field.ty;
    let field_trait = field_trait(wrapped, root);
    quote! {
        #[automatically_derived]
        impl #root::domain::Field for #ident {
            const TYPE: #root::domain::ValueType = <#wrapped as #field_trait>::TYPE;
            const NULLABLE: ::core::primitive::bool = <#wrapped as #field_trait>::NULLABLE;

            fn to_value(
                &self,
            ) -> ::core::result::Result<#root::domain::Value, #root::domain::FieldError> {
                <#wrapped as #field_trait>::to_value(&self.#member)
            }

            fn from_value(
                value: #root::domain::Value,
            ) -> ::core::result::Result<Self, #root::domain::FieldError> {
                ::core::result::Result::Ok(Self { #member: <#wrapped as #field_trait>::from_value(value)? })
            }

            fn normalize(&mut self) {
                <#wrapped as #field_trait>::normalize(&mut self.#member);
            }
        }

        // The `for<'a>` makes the compiler accept the bound where it does not hold. A
        // newtype of JSON, for example, is a field that cannot be compared.
        #[automatically_derived]
        impl #root::domain::Comparable for #ident
        where
            for<'a> #wrapped: #root::domain::Comparable,
        {
        }
    }
}

/// The path of `Field` with the location of `ty`, so that the compiler reports a type
/// that is not a field there, once.
pub(crate) fn field_trait(ty: &Type, root: &TokenStream) -> TokenStream {
    let span = Span::call_site().located_at(ty.span());
    quote_spanned!(span=> #root::domain::Field)
}
