//! The attribute of a row, `#[model(..)]` or `#[entity(..)]`, and which derive reads it.

use syn::{DeriveInput, LitStr, Path};

use crate::attributes::Keys;
use crate::errors::Errors;

/// Which derive it is.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum RowKind {
    /// A row with events and dates.
    Model,
    /// A row without them.
    Entity,
}

impl RowKind {
    /// The name of the derive.
    pub(crate) fn derive(self) -> &'static str {
        match self {
            RowKind::Model => "Model",
            RowKind::Entity => "Entity",
        }
    }

    /// The name of the attribute on the struct.
    pub(crate) fn attribute(self) -> &'static str {
        match self {
            RowKind::Model => "model",
            RowKind::Entity => "entity",
        }
    }

    /// The keys of the attribute.
    fn keys(self) -> &'static [&'static str] {
        match self {
            RowKind::Model => &["table", "event", "name"],
            RowKind::Entity => &["table", "name"],
        }
    }

    /// The columns that only the framework may declare, and how to read them.
    pub(crate) fn framework_columns(self) -> &'static [(&'static str, &'static str)] {
        const COLUMNS: [(&str, &str); 3] = [
            ("version", "Stored::version()"),
            ("created_date", "Stored::created_date()"),
            ("updated_date", "Stored::updated_date()"),
        ];
        match self {
            RowKind::Model => &COLUMNS,
            RowKind::Entity => &COLUMNS[..1],
        }
    }
}

/// The values of `#[model(..)]` or `#[entity(..)]`.
pub(crate) struct Header {
    /// The schema, if there is one.
    pub(crate) schema: Option<String>,
    /// The table, without the schema.
    pub(crate) table: String,
    /// The name of the row in events and errors.
    pub(crate) name: String,
    /// The type of the events; `None` for an entity.
    pub(crate) event: Option<Path>,
}

impl Header {
    /// Reads the attribute. Returns `None` without a valid table.
    pub(crate) fn read(kind: RowKind, input: &DeriveInput, errors: &mut Errors) -> Option<Self> {
        let attribute = kind.attribute();
        let keys = Keys::read(&input.attrs, attribute, kind.keys(), errors);
        if keys.get("table").is_none() {
            errors.at(
                &input.ident,
                format!("`{}` has no table; add `#[{attribute}(table = \"..\")]`", input.ident),
            );
        }
        if kind == RowKind::Model && keys.get("event").is_none() {
            errors.at(
                &input.ident,
                format!(
                    "`{}` has no events; add `#[model(event = ..)]`, or derive `Entity` for rows without events",
                    input.ident
                ),
            );
        }
        let table = keys.text("table", errors);
        let name = keys.name("name", errors);
        let event = keys.ty("event", errors);
        let (schema, table) = schema_and_table(&table?, errors)?;
        let name = name.map_or_else(|| table.clone(), |name| name.value());
        Some(Self { schema, table, name, event })
    }
}

/// Splits `accounting.wallets` into schema and table. `wallets` has no schema.
fn schema_and_table(written: &LitStr, errors: &mut Errors) -> Option<(Option<String>, String)> {
    let text = written.value();
    let parts: Vec<&str> = text.split('.').collect();
    match parts[..] {
        [table] => Some((None, table.to_owned())),
        [schema, table] if !schema.is_empty() && !table.is_empty() => {
            Some((Some(schema.to_owned()), table.to_owned()))
        }
        _ => {
            errors.at(written, "a table must be `table` or `schema.table`");
            None
        }
    }
}
