//! `derive(Model)` and `derive(Entity)`: a struct that is one row of one table.
//!
//! The columns are the id, the other fields as they are declared, and behind them those
//! that the framework keeps: the version and, for a model, the dates.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::{Data, DeriveInput, Fields, FieldsNamed, Ident};

use crate::attributes::refuse_generics;
use crate::column::Column;
use crate::errors::Errors;
use crate::header::{Header, Kind};

pub(crate) fn derive(
    kind: Kind,
    input: &DeriveInput,
    root: &TokenStream,
) -> syn::Result<TokenStream> {
    let mut errors = Errors::default();
    let Some(fields) = named_fields(input) else {
        errors.at(
            &input.ident,
            format!(
                "`derive({})` is for a struct with named fields, one for each column",
                kind.derive()
            ),
        );
        return errors.finish(TokenStream::new());
    };
    refuse_generics(kind.derive(), input, &mut errors);
    let header = Header::read(kind, input, &mut errors);
    let columns = read_columns(kind, &input.ident, fields, &mut errors);
    // Whatever is missing here was told to `errors`, so that `finish` refuses.
    let code = match (&header, position(&columns, "id"), position(&columns, "state")) {
        (Some(header), Some(_), Some(state)) => {
            code(kind, &input.ident, header, &columns, state, root)
        }
        _ => TokenStream::new(),
    };
    errors.finish(code)
}

fn named_fields(input: &DeriveInput) -> Option<&FieldsNamed> {
    match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) => Some(fields),
            _ => None,
        },
        _ => None,
    }
}

fn position(columns: &[Column], field: &str) -> Option<usize> {
    columns.iter().position(|column| column.field == field)
}

/// The columns of the struct's fields, the id first.
fn read_columns<'a>(
    kind: Kind,
    row: &Ident,
    fields: &'a FieldsNamed,
    errors: &mut Errors,
) -> Vec<Column<'a>> {
    let mut columns: Vec<Column> = Vec::new();
    for field in &fields.named {
        // A named field has a name.
        let Some(ident) = &field.ident else { continue };
        let column = Column::read(field, ident, errors);
        let name = &column.name;
        if let Some((kept, instead)) =
            kind.kept().iter().find(|(kept, _)| kept == name || ident.unraw() == kept)
        {
            errors.at(ident, format!("`{kept}` is kept by the framework; remove the field and read it from `{instead}`"));
        } else if let Some(earlier) = columns.iter().find(|earlier| earlier.name == *name) {
            errors.at(ident, format!("`{}` already has the column `{name}`", earlier.field));
        }
        columns.push(column);
    }
    for (field, example) in [("id", format!("Id<{row}>")), ("state", format!("{row}State"))] {
        if position(&columns, field).is_none() {
            errors.at(
                row,
                format!(
                    "`{row}` has no field `{field}`; add one, for example `{field}: {example}`"
                ),
            );
        }
    }
    columns.sort_by_key(|column| column.field != "id");
    columns
}

fn code(
    kind: Kind,
    row: &Ident,
    header: &Header,
    columns: &[Column],
    state: usize,
    root: &TokenStream,
) -> TokenStream {
    let table = table(kind, header, columns, state, root);
    let constants = constants(kind, row, columns, root);
    let (id_ty, state_ty) = (columns[0].ty, columns[state].ty);
    let event = match &header.event {
        Some(event) => quote!(#event),
        None => quote!(#root::domain::NoEvent),
    };
    let fields = columns.iter().map(|column| column.field);
    let values = columns.iter().map(|column| column.to_value(root));
    let reads = columns.iter().map(|column| column.read_from_row(root));
    let normalized = columns.iter().filter_map(|column| column.normalize(root));
    let model = (kind == Kind::Model).then(|| {
        quote! {
            #[automatically_derived]
            impl #root::domain::Model for #row {}
        }
    });
    quote! {
        /// The columns, by name and type, for conditions.
        #[automatically_derived]
        #[allow(dead_code, unreachable_pub)]
        impl #row {
            #constants
        }

        #[automatically_derived]
        impl #root::domain::Entity for #row {
            type Id = #id_ty;
            type State = #state_ty;
            type Event = #event;

            const TABLE: &'static #root::domain::Table = &#table;

            fn id(&self) -> Self::Id {
                self.id
            }

            fn state(&self) -> &Self::State {
                &self.state
            }

            fn set_state(&mut self, state: Self::State) {
                self.state = state;
            }

            fn to_values(
                &self,
            ) -> ::core::result::Result<
                ::std::vec::Vec<#root::domain::Value>,
                #root::domain::FieldError,
            > {
                ::core::result::Result::Ok(::std::vec![#(#values),*])
            }

            fn from_row(
                row: &mut #root::domain::RowReader<'_>,
            ) -> ::core::result::Result<Self, #root::domain::FieldError> {
                // Fields are evaluated as they are written: in the order of the columns.
                ::core::result::Result::Ok(Self { #(#fields: #reads),* })
            }

            fn normalize(&mut self) {
                #(#normalized)*
            }
        }

        #model
    }
}

/// The `Table`.
fn table(
    kind: Kind,
    header: &Header,
    columns: &[Column],
    state: usize,
    root: &TokenStream,
) -> TokenStream {
    let Header { schema, table, name, .. } = header;
    let schema = match schema {
        Some(schema) => quote!(::core::option::Option::Some(#schema)),
        None => quote!(::core::option::Option::None),
    };
    let mut definitions: Vec<TokenStream> =
        columns.iter().map(|column| column.definition(root)).collect();
    let version = definitions.len();
    definitions.push(kept_definition("version", quote!(Int), root));
    let dates = if kind == Kind::Model {
        let dates = definitions.len();
        definitions.push(kept_definition("created_date", quote!(Timestamp), root));
        definitions.push(kept_definition("updated_date", quote!(Timestamp), root));
        quote!(::core::option::Option::Some(#dates))
    } else {
        quote!(::core::option::Option::None)
    };
    quote! {
        #root::domain::Table {
            schema: #schema,
            name: #table,
            model: #name,
            columns: &[#(#definitions),*],
            version: ::core::option::Option::Some(#version),
            dates: #dates,
            state: ::core::option::Option::Some(#state),
        }
    }
}

fn kept_definition(name: &str, ty: TokenStream, root: &TokenStream) -> TokenStream {
    quote!(#root::domain::ColumnDef::new(#name, #root::domain::ValueType::#ty))
}

/// The constants that name the columns.
fn constants(kind: Kind, row: &Ident, columns: &[Column], root: &TokenStream) -> TokenStream {
    let fields = columns.iter().map(|column| column.constant(row, root));
    let dates = (kind == Kind::Model).then(|| {
        let instant = quote! {
            #root::__private::chrono::DateTime<#root::__private::chrono::Utc>
        };
        quote! {
            /// The column `created_date`, which the framework keeps.
            pub const CREATED_DATE: #root::repository::Column<#row, #instant> =
                #root::repository::Column::new("created_date");
            /// The column `updated_date`, which the framework keeps.
            pub const UPDATED_DATE: #root::repository::Column<#row, #instant> =
                #root::repository::Column::new("updated_date");
        }
    });
    quote! {
        #(#fields)*
        /// The column `version`, which the framework keeps.
        pub const VERSION: #root::repository::Column<#row, ::core::primitive::i64> =
            #root::repository::Column::new("version");
        #dates
    }
}
