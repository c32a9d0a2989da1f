//! `derive(Field)`: an enum without data is stored as text, a newtype as what it wraps.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DataStruct, DeriveInput, Member};

use crate::attributes::{Keys, refuse_generics};
use crate::errors::Errors;
use crate::text_enum::TextEnum;

pub(crate) fn derive(input: &DeriveInput, root: &TokenStream) -> syn::Result<TokenStream> {
    let ident = &input.ident;
    let mut errors = Errors::default();
    refuse_generics("Field", input, &mut errors);
    let code = match &input.data {
        Data::Enum(data) => {
            TextEnum::read(ident, data, "field", None, &mut errors).field_impls(root)
        }
        Data::Struct(data) => newtype(input, data, root, &mut errors),
        Data::Union(_) => {
            errors.at(ident, "a field is an enum without data or a struct that wraps one value");
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
    Keys::read(&input.attrs, "field", &[], errors);
    let members: Vec<Member> = data.fields.members().collect();
    let (Some(field), [member]) = (data.fields.iter().next(), members.as_slice()) else {
        errors.at(
            ident,
            format!(
                "`{ident}` has {} fields, a column has one value; wrap one, or derive serde's traits and mark the row's field `#[column(json)]`",
                members.len()
            ),
        );
        return TokenStream::new();
    };
    Keys::read(&field.attrs, "field", &[], errors);
    let wrapped = &field.ty;
    quote! {
        #[automatically_derived]
        impl #root::domain::Field for #ident {
            const TYPE: #root::domain::ValueType = <#wrapped as #root::domain::Field>::TYPE;
            const NULLABLE: ::core::primitive::bool = <#wrapped as #root::domain::Field>::NULLABLE;

            fn to_value(
                &self,
            ) -> ::core::result::Result<#root::domain::Value, #root::domain::FieldError> {
                #root::domain::Field::to_value(&self.#member)
            }

            fn from_value(
                value: #root::domain::Value,
            ) -> ::core::result::Result<Self, #root::domain::FieldError> {
                ::core::result::Result::Ok(Self { #member: #root::domain::Field::from_value(value)? })
            }

            fn normalize(&mut self) {
                #root::domain::Field::normalize(&mut self.#member);
            }
        }

        // The `for` keeps the compiler from refusing the bound where it does not hold: such
        // a newtype, of JSON for example, is a field that cannot be compared.
        #[automatically_derived]
        impl #root::domain::Comparable for #ident
        where
            for<'a> #wrapped: #root::domain::Comparable,
        {
        }
    }
}
