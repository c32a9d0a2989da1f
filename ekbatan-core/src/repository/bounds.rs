//! Many bounds in one condition: each of them a few values of a row, and a greatest value.
//!
//! As a chain of `OR`, each number of bounds is a statement of its own, and to plan it takes longer the more there
//! are. So they travel as lists where the database can join those.

use super::connective::Connective;
use crate::db::{Arg, ColumnInfo, Syntax, TableInfo};
use crate::domain::{Value, ValueType};

/// A chain of so many bounds is planned quickly.
const FEW: usize = 16;

/// A column of the condition, with its type.
pub(super) type Typed<'i> = (&'i ColumnInfo, ValueType);

/// The condition on rows for which some `[a, b, c]` of `bounds` has: first column = `a`, second = `b`, third <= `c`.
pub(super) fn render(
    columns: [Typed<'_>; 3],
    bounds: &[[Value; 3]],
    most: usize,
    syntax: &dyn Syntax,
    table: &TableInfo,
    args: &mut Vec<Arg>,
) -> String {
    let Some(last) = bounds.last() else { return "false".to_owned() };
    let first = args.len() + 1;
    if bounds.len() > FEW
        && let Some(condition) = syntax.up_to_any(first, columns, table, most)
    {
        for (at, (_, ty)) in columns.iter().enumerate() {
            args.push(Arg::Many(*ty, bounds.iter().map(|bound| bound[at].clone()).collect()));
        }
        return condition;
    }
    // The last one is repeated, so that there are few different statements.
    let padded =
        bounds.iter().chain(std::iter::repeat(last)).take(bounds.len().next_power_of_two());
    let any = padded.map(|bound| {
        let compared = columns.iter().zip(bound).zip(["=", "=", "<="]);
        let compared = compared.map(|(((column, ty), value), operator)| {
            args.push(Arg::One(*ty, value.clone()));
            let argument = syntax.argument(args.len(), *ty, column);
            format!("{} {operator} {argument}", syntax.operand(column, *ty))
        });
        format!("({})", compared.collect::<Vec<_>>().join(" AND "))
    });
    Connective::Or.join(any.collect())
}
