//! The table of an entity, as constants that the derive produces.

use super::ValueType;

/// One column: its name in the database and its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnDef {
    /// The name in the database.
    pub name: &'static str,
    /// The type of the column.
    pub ty: ValueType,
    /// Whether the field is an `Option`.
    pub nullable: bool,
}

impl ColumnDef {
    /// A column that is never null.
    pub const fn new(name: &'static str, ty: ValueType) -> Self {
        Self { name, ty, nullable: false }
    }

    /// A column that may be null.
    pub const fn nullable(name: &'static str, ty: ValueType) -> Self {
        Self { name, ty, nullable: true }
    }
}

/// A table's schema and name.
pub(crate) type TableKey = (Option<&'static str>, &'static str);

/// A table as the code declares it. The id is the first column; the columns of the framework
/// (`version`, and the dates of a model) are the last ones.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    /// The schema, if the table was given as `schema.table`.
    pub schema: Option<&'static str>,
    /// The table's name.
    pub name: &'static str,
    /// The name of the model in events and errors.
    pub model: &'static str,
    /// All columns, the id first.
    pub columns: &'static [ColumnDef],
    /// The index of `version`, if the table has one.
    pub version: Option<usize>,
    /// The index of `created_date`, for models. `updated_date` is the next column.
    pub dates: Option<usize>,
    /// The index of `state`, for tables with soft delete.
    pub state: Option<usize>,
}

impl Table {
    /// `schema.table`, or the name alone.
    pub fn full_name(&self) -> String {
        match self.schema {
            Some(schema) => format!("{schema}.{}", self.name),
            None => self.name.to_owned(),
        }
    }

    /// The identity of the table.
    pub(crate) fn key(&self) -> TableKey {
        (self.schema, self.name)
    }

    /// The columns of the user's struct.
    pub fn user_columns(&self) -> &'static [ColumnDef] {
        match self.version {
            Some(version) => &self.columns[..version],
            None => self.columns,
        }
    }
}
