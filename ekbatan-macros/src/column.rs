//! A field of a row: its column, and the generated code that converts between the two.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::{Field, GenericArgument, Ident, PathArguments, Type, TypeGroup, TypeParen, Visibility};

use crate::attributes::Keys;
use crate::errors::Errors;
use crate::field::field_trait;

/// A field and its column.
pub(crate) struct FieldColumn<'a> {
    /// The name of the field.
    pub(crate) field: &'a Ident,
    /// The type of the field.
    pub(crate) ty: &'a Type,
    /// The name of the column.
    pub(crate) name: String,
    visibility: &'a Visibility,
    storage: Storage<'a>,
}

/// How the field is stored.
enum Storage<'a> {
    /// By its `Field` implementation.
    Field,
    /// As JSON.
    Json,
    /// An optional value as JSON. `None` is NULL, not the JSON text `null`.
    OptionalJson(&'a Type),
}

impl<'a> FieldColumn<'a> {
    /// Reads `#[column(..)]` of the field named `ident`.
    pub(crate) fn read(field: &'a Field, ident: &'a Ident, errors: &mut Errors) -> Self {
        let keys = Keys::read(&field.attrs, "column", &["name", "json"], errors);
        let name = match keys.text("name", errors) {
            Some(name) => name.value(),
            None => ident.unraw().to_string(),
        };
        let storage = match (keys.flag("json", errors), inside_option(&field.ty)) {
            (false, _) => Storage::Field,
            (true, None) => Storage::Json,
            (true, Some(inside)) => Storage::OptionalJson(inside),
        };
        if let Some(json) = keys.get("json").filter(|_| ident == "id" || ident == "state") {
            errors.at(
                json,
                format!(
                    "the framework reads `{ident}`, so it cannot be stored as JSON; remove `json`"
                ),
            );
        }
        Self { field: ident, ty: &field.ty, name, visibility: &field.vis, storage }
    }

    /// The expression of the column's `ColumnDef`.
    pub(crate) fn definition(&self, root: &TokenStream) -> TokenStream {
        let Self { name, ty, .. } = self;
        match self.storage {
            Storage::Field => {
                let field = field_trait(ty, root);
                quote! {
                    #root::domain::ColumnDef {
                        name: #name,
                        ty: <#ty as #field>::TYPE,
                        nullable: <#ty as #field>::NULLABLE,
                    }
                }
            }
            Storage::Json => {
                quote!(#root::domain::ColumnDef::new(#name, #root::domain::ValueType::Json))
            }
            Storage::OptionalJson(_) => {
                quote!(#root::domain::ColumnDef::nullable(#name, #root::domain::ValueType::Json))
            }
        }
    }

    /// The expression of the field's `Value`, in a function that returns a `FieldError`.
    pub(crate) fn to_value(&self, root: &TokenStream) -> TokenStream {
        let Self { field, ty, name, .. } = self;
        let value = match self.storage {
            Storage::Field => {
                let field_trait = field_trait(ty, root);
                quote!(<#ty as #field_trait>::to_value(&self.#field))
            }
            Storage::Json => quote!(#root::domain::Json::encode(&self.#field)),
            Storage::OptionalJson(_) => quote! {
                self.#field.as_ref().map_or(
                    ::core::result::Result::Ok(#root::domain::Value::Null),
                    #root::domain::Json::encode,
                )
            },
        };
        quote!(#value.map_err(|error| error.at(#name))?)
    }

    /// The expression that reads the field from `row`.
    pub(crate) fn read_from_row(&self, root: &TokenStream) -> TokenStream {
        let Self { ty, .. } = self;
        match self.storage {
            Storage::Field => quote!(row.read::<#ty>()?),
            Storage::Json => quote!(row.read::<#root::domain::Json<#ty>>()?.0),
            Storage::OptionalJson(inside) => quote! {
                row.read::<::core::option::Option<#root::domain::Json<#inside>>>()?
                    .map(|json| json.0)
            },
        }
    }

    /// The statement that normalizes the field. JSON has none: what databases change in a document,
    /// such as how a number is written, differs between them.
    pub(crate) fn normalize(&self, root: &TokenStream) -> Option<TokenStream> {
        let Self { field, ty, .. } = self;
        let field_trait = field_trait(ty, root);
        matches!(self.storage, Storage::Field)
            .then(|| quote!(<#ty as #field_trait>::normalize(&mut self.#field);))
    }

    /// The constant that names the column in conditions.
    pub(crate) fn constant(&self, row: &Ident, root: &TokenStream) -> TokenStream {
        let Self { ty, name, visibility, .. } = self;
        let constant =
            Ident::new(&self.field.unraw().to_string().to_uppercase(), self.field.span());
        let stored = match self.storage {
            Storage::Field => quote!(#ty),
            Storage::Json => quote!(#root::domain::Json<#ty>),
            Storage::OptionalJson(inside) => {
                quote!(::core::option::Option<#root::domain::Json<#inside>>)
            }
        };
        let doc = format!("The column `{name}`.");
        quote! {
            #[doc = #doc]
            #visibility const #constant: #root::repository::Column<#row, #stored> =
                #root::repository::Column::new(#name);
        }
    }
}

/// The `X` of an `Option<X>`. A macro sees only the tokens of a type, in an invisible group if another macro
/// inserts them.
fn inside_option(mut ty: &Type) -> Option<&Type> {
    while let Type::Group(TypeGroup { elem, .. }) | Type::Paren(TypeParen { elem, .. }) = ty {
        ty = elem;
    }
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last().filter(|last| last.ident == "Option")?;
    match &last.arguments {
        PathArguments::AngleBracketed(arguments) => match arguments.args.first()? {
            GenericArgument::Type(inside) => Some(inside),
            _ => None,
        },
        _ => None,
    }
}
