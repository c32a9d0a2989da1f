//! An enum without data, stored as text. `State` and `Field` share it.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::{DataEnum, Fields, Ident, Variant};

use crate::attributes::Keys;
use crate::errors::Errors;

/// An enum and the text of each variant.
pub(crate) struct TextEnum<'a> {
    ident: &'a Ident,
    variants: Vec<(&'a Ident, String)>,
}

impl<'a> TextEnum<'a> {
    /// Reads the variants and the texts in `#[attribute(name = "..")]`. `longest` is the
    /// size of the column, if it is known.
    pub(crate) fn read(
        ident: &'a Ident,
        data: &'a DataEnum,
        attribute: &str,
        longest: Option<usize>,
        errors: &mut Errors,
    ) -> Self {
        let mut variants: Vec<(&Ident, String)> = Vec::new();
        if data.variants.is_empty() {
            errors.at(ident, format!("`{ident}` has no variants; add one, for example `Active`"));
        }
        for variant in &data.variants {
            let text = text_of(variant, attribute, errors);
            if !matches!(variant.fields, Fields::Unit) {
                errors.at(
                    &variant.fields,
                    format!(
                        "`{}` contains data, but the column stores only its text; move the data to a field of the row",
                        variant.ident
                    ),
                );
            }
            if let Some(longest) = longest.filter(|longest| text.chars().count() > *longest) {
                errors.at(
                    &variant.ident,
                    format!(
                        "`{text}` has {} characters, but the column stores {longest}; shorten it with `#[{attribute}(name = \"..\")]`",
                        text.chars().count()
                    ),
                );
            }
            if let Some((earlier, _)) = variants.iter().find(|(_, earlier)| *earlier == text) {
                errors.at(
                    &variant.ident,
                    format!("`{earlier}` already has the text `{text}`; choose another one"),
                );
            }
            variants.push((&variant.ident, text));
        }
        Self { ident, variants }
    }

    /// The variants, each with its text.
    pub(crate) fn variants(&self) -> impl Iterator<Item = (&'a Ident, &str)> {
        self.variants.iter().map(|(variant, text)| (*variant, text.as_str()))
    }

    /// The variant that is stored as `text`.
    pub(crate) fn variant(&self, text: &str) -> Option<&'a Ident> {
        self.variants.iter().find(|(_, known)| known == text).map(|(variant, _)| *variant)
    }

    /// A `match` from `&self` to its text.
    pub(crate) fn text_of_self(&self) -> TokenStream {
        let arms = self.variants.iter().map(|(variant, text)| quote!(Self::#variant => #text));
        quote!(match self { #(#arms,)* })
    }

    /// The impls of `Field` and `Comparable`.
    pub(crate) fn field_impls(&self, root: &TokenStream) -> TokenStream {
        let ident = self.ident;
        let text_of_self = self.text_of_self();
        let arms = self
            .variants
            .iter()
            .map(|(variant, text)| quote!(#text => ::core::result::Result::Ok(Self::#variant)));
        let known: Vec<&str> = self.variants.iter().map(|(_, text)| text.as_str()).collect();
        let advice = format!(
            "which {} does not know ({}); add the variant or correct the row",
            ident.unraw(),
            known.join(", ")
        );
        quote! {
            #[automatically_derived]
            impl #root::domain::Field for #ident {
                const TYPE: #root::domain::ValueType = #root::domain::ValueType::Text;

                fn to_value(
                    &self,
                ) -> ::core::result::Result<#root::domain::Value, #root::domain::FieldError> {
                    ::core::result::Result::Ok(#root::domain::Value::Text(
                        ::std::string::String::from(#text_of_self),
                    ))
                }

                fn from_value(
                    value: #root::domain::Value,
                ) -> ::core::result::Result<Self, #root::domain::FieldError> {
                    match value {
                        #root::domain::Value::Text(text) => match text.as_str() {
                            #(#arms,)*
                            unknown => ::core::result::Result::Err(#root::domain::FieldError::new(
                                ::std::format!("the database holds `{}`, {}", unknown, #advice),
                            )),
                        },
                        other => ::core::result::Result::Err(#root::domain::FieldError::mismatch(
                            <Self as #root::domain::Field>::TYPE,
                            &other,
                        )),
                    }
                }
            }

            #[automatically_derived]
            impl #root::domain::Comparable for #ident {}
        }
    }
}

/// The text in the attribute, or the name of the variant.
fn text_of(variant: &Variant, attribute: &str, errors: &mut Errors) -> String {
    Keys::read(&variant.attrs, attribute, &["name"], errors).text("name", errors).map_or_else(
        || screaming_snake(&variant.ident.unraw().to_string()),
        |written| written.value(),
    )
}

/// Converts `PendingReview` to `PENDING_REVIEW`. An abbreviation stays one word: `InEU`
/// to `IN_EU`.
fn screaming_snake(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut text = String::new();
    for (i, letter) in letters.iter().enumerate() {
        let starts_word = letter.is_uppercase()
            && i > 0
            && letters[i - 1] != '_'
            && (!letters[i - 1].is_uppercase()
                || letters.get(i + 1).is_some_and(|next| next.is_lowercase()));
        if starts_word {
            text.push('_');
        }
        text.extend(letter.to_uppercase());
    }
    text
}
