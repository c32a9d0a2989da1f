//! `derive(Model)` and `derive(Entity)`: a struct is one row of a table.
//!
//! The order of the columns is: the id, the other fields as they are declared, then the
//! framework's columns, which are the version and, for a model, the dates.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::{Data, DeriveInput, Fields, FieldsNamed, Ident};

use crate::attributes::reject_generics;
use crate::column::FieldColumn;
use crate::errors::Errors;
use crate::header::{Header, RowKind};

pub(crate) fn derive(
    kind: RowKind,
    input: &DeriveInput,
    root: &TokenStream,
) -> syn::Result<TokenStream> {
    let mut errors = Errors::default();
    let Some(fields) = named_fields(input) else {
        errors.at(
            &input.ident,
            format!(
                "`derive({})` needs a struct with named fields, one for each column",
                kind.derive()
            ),
        );
        return errors.finish(TokenStream::new());
    };
    reject_generics(kind.derive(), input, &mut errors);
    let header = Header::read(kind, input, &mut errors);
    let columns = read_columns(kind, &input.ident, fields, &mut errors);
    // Any missing part has been reported to `errors`, so `finish` returns an error.
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

fn position(columns: &[FieldColumn], field: &str) -> Option<usize> {
    columns.iter().position(|column| column.field == field)
}

/// Reads the columns of the struct's fields, the id first.
fn read_columns<'a>(
    kind: RowKind,
    row: &Ident,
    fields: &'a FieldsNamed,
    errors: &mut Errors,
) -> Vec<FieldColumn<'a>> {
    let mut columns: Vec<FieldColumn> = Vec::new();
    for field in &fields.named {
        // Named fields always have an identifier.
        let Some(ident) = &field.ident else { continue };
        let column = FieldColumn::read(field, ident, errors);
        let name = &column.name;
        if let Some((framework, instead)) =
            kind.framework_columns().iter().find(|(it, _)| it == name || ident.unraw() == it)
        {
            errors.at(ident, format!("the framework manages `{framework}`; remove the field and read it from `{instead}`"));
        } else if let Some(earlier) = columns.iter().find(|earlier| earlier.name == *name) {
            errors.at(
                ident,
                format!("`{}` already has the column `{name}`; choose another name", earlier.field),
            );
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
    kind: RowKind,
    row: &Ident,
    header: &Header,
    columns: &[FieldColumn],
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
    let model = (kind == RowKind::Model).then(|| {
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
                // Field expressions are evaluated in the order in which they are written,
                // which is that of the columns.
                ::core::result::Result::Ok(Self { #(#fields: #reads),* })
            }

            fn normalize(&mut self) {
                #(#normalized)*
            }
        }

        // Without a use, `cargo check` does not evaluate the table.
        const _: &#root::domain::Table = <#row as #root::domain::Entity>::TABLE;

        #model
    }
}

/// The expression of the `Table`.
fn table(
    kind: RowKind,
    header: &Header,
    columns: &[FieldColumn],
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
    definitions.push(framework_column("version", quote!(Int), root));
    let dates = if kind == RowKind::Model {
        let dates = definitions.len();
        definitions.push(framework_column("created_date", quote!(Timestamp), root));
        definitions.push(framework_column("updated_date", quote!(Timestamp), root));
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

fn framework_column(name: &str, ty: TokenStream, root: &TokenStream) -> TokenStream {
    quote!(#root::domain::ColumnDef::new(#name, #root::domain::ValueType::#ty))
}

/// The constants that name the columns.
fn constants(
    kind: RowKind,
    row: &Ident,
    columns: &[FieldColumn],
    root: &TokenStream,
) -> TokenStream {
    let fields = columns.iter().map(|column| column.constant(row, root));
    let dates = (kind == RowKind::Model).then(|| {
        let instant = quote! {
            #root::__private::chrono::DateTime<#root::__private::chrono::Utc>
        };
        quote! {
            /// The column `created_date`, which the framework manages.
            pub const CREATED_DATE: #root::repository::Column<#row, #instant> =
                #root::repository::Column::new("created_date");
            /// The column `updated_date`, which the framework manages.
            pub const UPDATED_DATE: #root::repository::Column<#row, #instant> =
                #root::repository::Column::new("updated_date");
        }
    });
    quote! {
        #(#fields)*
        /// The column `version`, which the framework manages.
        pub const VERSION: #root::repository::Column<#row, ::core::primitive::i64> =
            #root::repository::Column::new("version");
        #dates
    }
}
