//! The head of a row: which derive it is, and what its `#[model(..)]` or `#[entity(..)]`
//! says.

use syn::{DeriveInput, LitStr, Path};

use crate::attributes::Keys;
use crate::errors::Errors;

/// Which of the two derives it is.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// With events and dates.
    Model,
    /// With neither.
    Entity,
}

impl Kind {
    /// The derive's name.
    pub(crate) fn derive(self) -> &'static str {
        match self {
            Kind::Model => "Model",
            Kind::Entity => "Entity",
        }
    }

    /// The attribute on the struct.
    pub(crate) fn attribute(self) -> &'static str {
        match self {
            Kind::Model => "model",
            Kind::Entity => "entity",
        }
    }

    /// What the attribute takes.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Kind::Model => &["table", "event", "name"],
            Kind::Entity => &["table", "name"],
        }
    }

    /// The columns that a struct may not declare, and where to read them instead.
    pub(crate) fn kept(self) -> &'static [(&'static str, &'static str)] {
        const KEPT: [(&str, &str); 3] = [
            ("version", "Stored::version()"),
            ("created_date", "Stored::created_date()"),
            ("updated_date", "Stored::updated_date()"),
        ];
        match self {
            Kind::Model => &KEPT,
            Kind::Entity => &KEPT[..1],
        }
    }
}

/// What `#[model(..)]` or `#[entity(..)]` says.
pub(crate) struct Header {
    /// The schema, if one was written.
    pub(crate) schema: Option<String>,
    /// The table, without its schema.
    pub(crate) table: String,
    /// The name under which events and errors speak of the row.
    pub(crate) name: String,
    /// The type of the events; none for an entity.
    pub(crate) event: Option<Path>,
}

impl Header {
    /// Reads the attribute; nothing if there is no usable table.
    pub(crate) fn read(kind: Kind, input: &DeriveInput, errors: &mut Errors) -> Option<Self> {
        let attribute = kind.attribute();
        let keys = Keys::read(&input.attrs, attribute, kind.keys(), errors);
        if keys.get("table").is_none() {
            errors.at(
                &input.ident,
                format!("`{}` has no table; add `#[{attribute}(table = \"..\")]`", input.ident),
            );
        }
        if kind == Kind::Model && keys.get("event").is_none() {
            errors.at(
                &input.ident,
                format!(
                    "`{}` has no events; add `#[model(event = ..)]`, or use `#[derive(Entity)]` for rows without events",
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

/// `wallets`, or `accounting.wallets` as its two parts.
fn schema_and_table(written: &LitStr, errors: &mut Errors) -> Option<(Option<String>, String)> {
    let text = written.value();
    let parts: Vec<&str> = text.split('.').collect();
    match parts[..] {
        [table] => Some((None, table.to_owned())),
        [schema, table] if !schema.is_empty() && !table.is_empty() => {
            Some((Some(schema.to_owned()), table.to_owned()))
        }
        _ => {
            errors.at(written, "a table is written `table` or `schema.table`");
            None
        }
    }
}
