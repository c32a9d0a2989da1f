//! What a derive knows about a table, as plain constants.

use super::ValueType;

/// One column: its name in the database and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnDef {
    /// The name in the database.
    pub name: &'static str,
    /// What the column holds.
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

/// A table as the code sees it. The id is always the first column; the columns that the
/// framework keeps (`version`, and the dates of a model) are the last ones.
#[derive(Debug, PartialEq, Eq)]
pub struct Table {
    /// The schema, where the table name was written as `schema.table`.
    pub schema: Option<&'static str>,
    /// The table's name.
    pub name: &'static str,
    /// The name under which events and errors speak of the model.
    pub model: &'static str,
    /// Every column, the id first.
    pub columns: &'static [ColumnDef],
    /// Where `version` stands, for tables that are guarded by one.
    pub version: Option<usize>,
    /// Where `created_date` stands (`updated_date` is the next one), for models.
    pub dates: Option<usize>,
    /// Where `state` stands, for tables with soft delete.
    pub state: Option<usize>,
}

impl Table {
    /// `schema.table`, as it was written.
    pub fn full_name(&self) -> String {
        match self.schema {
            Some(schema) => format!("{schema}.{}", self.name),
            None => self.name.to_owned(),
        }
    }

    /// What tells tables apart.
    pub(crate) fn key(&self) -> TableKey {
        (self.schema, self.name)
    }

    /// The columns that the user's struct declares.
    pub fn user_columns(&self) -> &'static [ColumnDef] {
        match self.version {
            Some(version) => &self.columns[..version],
            None => self.columns,
        }
    }
}
