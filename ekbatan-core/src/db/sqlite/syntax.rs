//! SQLite's SQL fragments.

use rust_decimal::Decimal;

use crate::db::fence::is_old;
use crate::db::{ColumnInfo, SORTED_BYTES, Syntax, nearest_date};
use crate::domain::{Table, Value, ValueType};

/// The seconds since 1970.
pub(super) const SECONDS: &str = "CAST(strftime('%s', 'now') AS INTEGER)";

/// SQLite's limit on the parameters of a statement.
pub(super) const MAX_PARAMETERS: usize = 32_766;

/// The collation that orders decimals, which are stored as text, by their value.
pub(super) const DECIMAL: &str = "ekbatan_decimal";

/// The order of that collation.
pub(super) fn by_value(left: &str, right: &str) -> std::cmp::Ordering {
    match (Decimal::from_str_exact(left), Decimal::from_str_exact(right)) {
        (Ok(left), Ok(right)) => left.cmp(&right),
        _ => left.cmp(right),
    }
}

pub(super) struct SqliteSyntax;

/// The placeholder of a list of floats, replaced once their number is known.
pub(super) fn float_list(n: usize) -> String {
    format!("/*floats*/ ${n}")
}

/// The affinity of a column, by the rules of SQLite's documentation.
fn affinity(db_type: &str) -> &'static str {
    let ty = db_type.to_uppercase();
    if ty.contains("INT") {
        "INTEGER"
    } else if ty.contains("CHAR") || ty.contains("CLOB") || ty.contains("TEXT") {
        "TEXT"
    } else if ty.contains("BLOB") || ty.is_empty() {
        "BLOB"
    } else if ty.contains("REAL") || ty.contains("FLOA") || ty.contains("DOUB") {
        "REAL"
    } else {
        "NUMERIC"
    }
}

impl Syntax for SqliteSyntax {
    /// A schema becomes a prefix, because SQLite's schemas are separate files.
    fn table(&self, table: &Table) -> String {
        match table.schema {
            Some(schema) => self.quote(&format!("{schema}_{}", table.name)),
            None => self.quote(table.name),
        }
    }

    fn argument(&self, n: usize, _: ValueType, _: &ColumnInfo) -> String {
        format!("${n}")
    }

    /// The list is one JSON text, so that a list of any length is one parameter.
    fn any(&self, n: usize, ty: ValueType, column: &ColumnInfo) -> String {
        if ty == ValueType::Float {
            // Not as JSON: SQLite does not always parse the same float that was written.
            return format!("{} IN ({})", self.operand(column, ty), float_list(n));
        }
        let element = if ty == ValueType::Bytes { "unhex(value)" } else { "value" };
        format!("{} IN (SELECT {element} FROM json_each(${n}))", self.operand(column, ty))
    }

    /// A list of floats is one parameter for each of them, and one for the list.
    fn longest_list(&self, ty: ValueType) -> Option<usize> {
        (ty == ValueType::Float).then_some(MAX_PARAMETERS - 1)
    }

    fn most_parameters(&self) -> usize {
        MAX_PARAMETERS
    }

    fn nearest(&self, value: &Value) -> Option<Value> {
        match value {
            Value::Float(float) if float.is_nan() => Some(Value::Float(f64::INFINITY)),
            value => nearest_date(value),
        }
    }

    /// A column of numeric affinity converts text that looks like a number: `10.50` becomes a float
    /// and `007` becomes 7.
    fn misfit(&self, column: &ColumnInfo, ty: ValueType) -> Option<String> {
        let affinity = affinity(&column.db_type);
        let unsafe_for_text = matches!(affinity, "NUMERIC" | "INTEGER" | "REAL");
        match ty {
            ValueType::Decimal
            | ValueType::Text
            | ValueType::Json
            | ValueType::Uuid
            | ValueType::Bytes
                if unsafe_for_text =>
            {
                Some(format!(
                    "column `{}` is declared {}, which SQLite turns into a number; declare it {} to keep a field of type {} exactly",
                    column.name,
                    column.db_type,
                    if ty == ValueType::Bytes { "BLOB" } else { "TEXT" },
                    ty.name()
                ))
            }
            // A 64-bit float cannot represent every 64-bit integer.
            ValueType::Int | ValueType::Bool if affinity == "REAL" => Some(format!(
                "column `{}` is declared {}, which SQLite turns into a float; declare it INTEGER to keep a field of type {}",
                column.name,
                column.db_type,
                ty.name()
            )),
            ValueType::Int | ValueType::Bool | ValueType::Float if affinity == "TEXT" => {
                Some(format!(
                    "column `{}` is declared {}, which SQLite turns into text; declare it {} to keep a field of type {}",
                    column.name,
                    column.db_type,
                    if ty == ValueType::Float { "REAL" } else { "INTEGER" },
                    ty.name()
                ))
            }
            _ => None,
        }
    }

    fn present(&self) -> &'static str {
        "strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')"
    }

    fn recorded_before(&self, seconds: u64) -> String {
        // Not the date of the database: SQLite cannot add a column with the present time.
        format!("completion_date < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-{seconds} seconds')")
    }

    fn fence_is_old(&self) -> String {
        is_old(SECONDS, |seconds| {
            format!("until < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-{seconds} seconds')")
        })
    }

    fn operand(&self, column: &ColumnInfo, ty: ValueType) -> String {
        let name = self.quote(&column.name);
        if ty == ValueType::Decimal { format!("{name} COLLATE {DECIMAL}") } else { name }
    }

    fn merge_operand(&self, column: &ColumnInfo, ty: ValueType) -> String {
        match ty {
            ValueType::Text => format!("{} COLLATE BINARY", self.quote(&column.name)),
            _ => self.operand(column, ty),
        }
    }

    fn first_bytes(&self, merged: &str, _: ValueType) -> String {
        let bytes = format!("CAST({merged} AS BLOB)");
        // A part of empty bytes would be null.
        format!("ifnull(substr({bytes}, 1, {SORTED_BYTES}), {bytes})")
    }
}
