//! The order of a page and its continuation, as SQL.
//!
//! Invariant: both follow one order, in which null is less than every value. That is how
//! SQLite, MySQL and MariaDB sort by themselves; PostgreSQL is told.

use std::cmp::Ordering;

use super::page::{Position, Sorting, TextOrder};
use super::value_order::compare_keys;
use crate::db::{Arg, ColumnInfo, Nulls, Syntax, TableInfo};
use crate::domain::{Value, ValueType};

/// The columns by which a page is ordered: the requested one, if any, then the id.
pub(super) struct PageKeys<'a> {
    syntax: &'a dyn Syntax,
    descending: bool,
    texts: TextOrder,
    first: Option<Key<'a>>,
    id: Key<'a>,
}

struct Key<'a> {
    column: &'a ColumnInfo,
    ty: ValueType,
    /// The column, in the form in which it is ordered and compared.
    operand: String,
    nullable: bool,
}

impl<'a> PageKeys<'a> {
    pub(super) fn new(
        syntax: &'a dyn Syntax,
        info: &'a TableInfo,
        sorting: &Sorting,
        texts: TextOrder,
    ) -> Self {
        let key = |(position, ty): (usize, ValueType)| {
            let column = &info.columns[position];
            let operand = match texts {
                TextOrder::OfDatabase => syntax.page_key(syntax.operand(column, ty), column, ty),
                _ if syntax.has_few_bytes(column, ty) => syntax.merge_operand(column, ty),
                _ => cut(syntax, texts, syntax.merge_operand(column, ty), ty),
            };
            let optional = info.table.columns[position].nullable;
            Key { column, ty, operand, nullable: optional && column.nulls != Nulls::Refused }
        };
        Self {
            syntax,
            descending: sorting.descending,
            texts,
            first: sorting.key.map(key),
            id: key(sorting.id),
        }
    }

    /// What follows `ORDER BY`.
    pub(super) fn order(&self) -> String {
        let direction = if self.descending { "DESC" } else { "ASC" };
        let id = format!("{} {direction}", self.id.operand);
        let Some(first) = &self.first else { return id };
        let nulls = if first.nullable { self.syntax.null_is_least(self.descending) } else { "" };
        format!("{} {direction}{nulls}, {id}", first.operand)
    }

    /// The condition for the rows after a position.
    pub(super) fn beyond(&self, position: &Position, args: &mut Vec<Arg>) -> String {
        let operator = if self.descending { "<" } else { ">" };
        let (Some(first), Some(value)) = (&self.first, &position.key) else {
            let id = self.mark(&self.id, &position.id, args);
            return format!("{} {operator} {id}", self.id.operand);
        };
        let column = self.syntax.quote(&first.column.name);
        if value.is_null() {
            let id = self.mark(&self.id, &position.id, args);
            let among_nulls = format!("{} {operator} {id}", self.id.operand);
            return if self.descending {
                format!("({column} IS NULL AND {among_nulls})")
            } else {
                format!("({column} IS NOT NULL OR {among_nulls})")
            };
        }
        let nulls = if first.nullable && self.descending {
            format!(" OR {column} IS NULL")
        } else {
            String::new()
        };
        // The value may be that of another shard, whose database holds more.
        let nearest = self.syntax.nearest(value);
        let side =
            nearest.as_ref().map_or(Ordering::Equal, |near| compare_keys(self.texts, value, near));
        let mark = self.mark(first, nearest.as_ref().unwrap_or(value), args);
        let operator_with_nearest = match (side, self.descending) {
            (Ordering::Equal, _) => None,
            (Ordering::Less, false) => Some(">="),
            (Ordering::Greater, true) => Some("<="),
            _ => Some(operator),
        };
        if let Some(operator) = operator_with_nearest {
            return format!("({} {operator} {mark}{nulls})", first.operand);
        }
        let id = self.mark(&self.id, &position.id, args);
        // A row comparison would ignore the collations of the columns.
        format!(
            "({key} {operator} {mark} OR ({key} = {mark} AND {} {operator} {id}){nulls})",
            self.id.operand,
            key = first.operand,
        )
    }

    /// Appends a value to the arguments, and returns how it is compared with the key.
    fn mark(&self, key: &Key<'_>, value: &Value, args: &mut Vec<Arg>) -> String {
        args.push(Arg::One(key.ty, value.clone()));
        let n = args.len();
        let (syntax, ty, column) = (self.syntax, key.ty, key.column);
        match self.texts {
            TextOrder::OfDatabase => syntax.page_key(syntax.argument(n, ty, column), column, ty),
            // The value may be that of another shard, whose column has longer ones.
            texts => cut(syntax, texts, syntax.merge_argument(n, ty, column), ty),
        }
    }
}

/// A merged column or argument, or its first bytes if no more are compared.
fn cut(syntax: &dyn Syntax, texts: TextOrder, merged: String, ty: ValueType) -> String {
    match (texts, ty) {
        (TextOrder::FirstBytes, ValueType::Text | ValueType::Bytes) => {
            syntax.first_bytes(&merged, ty)
        }
        _ => merged,
    }
}
