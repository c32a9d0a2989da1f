//! Finds a table that two models name differently, such as `accounts` and `public.accounts`.
//!
//! Rows in flight, of groups and of plans are known by the table's name in the code. Under two
//! names the same row would be two rows, and an update could be lost. So the second model is
//! refused. The database is asked only about names that could mean one table.

use super::driver::{Connection, Syntax};
use super::{ColumnInfo, DbError, Rules};
use crate::domain::Table;

/// A table's columns and rules, and another table of the code that is the same in the database.
pub(crate) struct Described {
    pub(crate) columns: Vec<ColumnInfo>,
    pub(crate) rules: Rules,
    pub(crate) same_as: Option<&'static Table>,
}

/// Those of `known` whose names could mean the same table as `table`.
pub(crate) fn alike(
    syntax: &dyn Syntax,
    table: &Table,
    known: impl Iterator<Item = &'static Table>,
) -> Vec<&'static Table> {
    let is_alike = |other: &&'static Table| {
        other.key() != table.key()
            && (other.name.eq_ignore_ascii_case(table.name)
                || syntax.table(other).eq_ignore_ascii_case(&syntax.table(table)))
    };
    known.filter(is_alike).collect()
}

/// Reads the columns and rules of a table, and compares it with those that are named alike.
pub(crate) async fn describe(
    connection: &mut (dyn Connection + '_),
    table: &'static Table,
    alike: &[&'static Table],
) -> Result<Described, DbError> {
    let columns = connection.describe(table).await?;
    let rules = connection.rules(table).await?;
    let mut same_as = None;
    if !alike.is_empty() && !columns.is_empty() {
        let own = connection.identify(table).await?;
        for other in alike {
            if own.is_some() && connection.identify(other).await? == own {
                same_as = Some(*other);
            }
        }
    }
    Ok(Described { columns, rules, same_as })
}
