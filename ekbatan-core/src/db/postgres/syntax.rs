//! PostgreSQL's SQL fragments.

use crate::db::{ColumnInfo, SORTED_BYTES, Syntax, TableInfo};
use crate::domain::{Table, Value, ValueType};

pub(super) struct PostgresSyntax;

/// The type as which a value is sent.
pub(super) fn wire_type(ty: ValueType) -> &'static str {
    match ty {
        ValueType::Bool => "bool",
        ValueType::Int => "int8",
        ValueType::Float => "float8",
        ValueType::Text | ValueType::Json => "text",
        ValueType::Bytes => "bytea",
        ValueType::Uuid => "uuid",
        ValueType::Decimal => "numeric",
        ValueType::Date => "date",
        ValueType::Timestamp => "timestamp",
    }
}

/// `expression`, which has the wire type, converted for the column. Lengths and scales are not
/// cast: a cast would truncate, while the assignment rejects a value that does not fit.
///
/// A `text` would be compared with its trailing spaces and its case, also with a column that is ordered
/// without them.
pub(super) fn assigned(expression: &str, column: &ColumnInfo) -> String {
    match column.db_type.as_str() {
        "json" | "jsonb" | "bpchar" | "citext" => format!("{expression}::{}", column.db_type),
        "timestamptz" => format!("({expression} AT TIME ZONE 'UTC')"),
        _ if column.is_enum => format!("{expression}::{}", type_name(column)),
        _ => expression.to_owned(),
    }
}

/// The type of a column that holds such a field.
fn fitting(ty: ValueType) -> &'static str {
    match ty {
        ValueType::Bool => "boolean",
        ValueType::Int => "bigint",
        ValueType::Float => "double precision",
        ValueType::Text => "text",
        ValueType::Bytes => "bytea",
        ValueType::Uuid => "uuid",
        ValueType::Decimal => "numeric",
        ValueType::Date => "date",
        ValueType::Timestamp => "timestamp",
        ValueType::Json => "jsonb",
    }
}

/// The name of the column's type. That of an enum has its schema, and quotes where it needs them.
pub(super) fn type_name(column: &ColumnInfo) -> String {
    if column.is_enum { column.db_type.clone() } else { PostgresSyntax.quote(&column.db_type) }
}

impl Syntax for PostgresSyntax {
    fn table(&self, table: &Table) -> String {
        match table.schema {
            Some(schema) => format!("{}.{}", self.quote(schema), self.quote(table.name)),
            None => self.quote(table.name),
        }
    }

    fn argument(&self, n: usize, ty: ValueType, column: &ColumnInfo) -> String {
        assigned(&format!("${n}::{}", wire_type(ty)), column)
    }

    fn any(&self, n: usize, ty: ValueType, column: &ColumnInfo) -> String {
        let name = self.quote(&column.name);
        match column.db_type.as_str() {
            "timestamptz" => format!("({name} AT TIME ZONE 'UTC') = ANY(${n}::timestamp[])"),
            "bpchar" | "citext" => format!("{name} = ANY(${n}::text[]::{}[])", column.db_type),
            _ if column.is_enum => {
                format!("{name} = ANY(${n}::text[]::{}[])", type_name(column))
            }
            _ => format!("{name} = ANY(${n}::{}[])", wire_type(ty)),
        }
    }

    /// A text that goes on with the character 0 comes right after the text before that character.
    fn nearest(&self, value: &Value) -> Option<Value> {
        match value {
            Value::Text(text) => {
                text.split_once('\0').map(|(before, _)| Value::Text(before.into()))
            }
            _ => None,
        }
    }

    /// Arrays of one element keep the planner from a join that reads the whole table: it takes each for a list of
    /// unknown values, which only the index finds.
    fn up_to_any(
        &self,
        first: usize,
        columns: [(&ColumnInfo, ValueType); 3],
        table: &TableInfo,
        most: usize,
    ) -> Option<String> {
        let lists =
            (first..).zip(&columns).map(|(n, (_, ty))| format!("${n}::{}[]", wire_type(*ty)));
        let lists = lists.collect::<Vec<_>>().join(", ");
        let [a, b, c] = columns.map(|(column, _)| self.quote(&column.name));
        let (id, of) = (self.quote(&table.columns[0].name), self.table(table.table));
        Some(format!(
            "{id} = ANY(ARRAY(SELECT of.{id} FROM unnest({lists}) AS bounds (a, b, c) JOIN {of} AS of \
             ON of.{a} = ANY(ARRAY[bounds.a]) AND of.{b} = ANY(ARRAY[bounds.b]) AND of.{c} <= bounds.c LIMIT {most}))"
        ))
    }

    fn misfit(&self, column: &ColumnInfo, ty: ValueType) -> Option<String> {
        let fits = match ty {
            ValueType::Bool => column.db_type == "bool",
            ValueType::Int => matches!(column.db_type.as_str(), "int2" | "int4" | "int8"),
            ValueType::Float => matches!(column.db_type.as_str(), "float4" | "float8"),
            ValueType::Text => {
                column.is_enum
                    || matches!(column.db_type.as_str(), "text" | "varchar" | "bpchar" | "citext")
            }
            ValueType::Bytes => column.db_type == "bytea",
            ValueType::Uuid => column.db_type == "uuid",
            ValueType::Decimal => column.db_type == "numeric",
            ValueType::Date => column.db_type == "date",
            ValueType::Timestamp => matches!(column.db_type.as_str(), "timestamp" | "timestamptz"),
            ValueType::Json => matches!(column.db_type.as_str(), "json" | "jsonb"),
        };
        // Fewer digits would round silently.
        if fits && ty == ValueType::Timestamp && column.length.is_some_and(|digits| digits < 6) {
            return Some(format!(
                "column `{}` is of type {}({}), which does not keep microseconds; declare it {} without a number",
                column.name,
                column.db_type,
                column.length.unwrap_or_default(),
                column.db_type
            ));
        }
        if ty == ValueType::Text && !column.is_enum && column.db_type.ends_with(".citext") {
            return Some(format!(
                "column `{}` is of type {}, whose schema is not in the search_path, so it would be compared as \
                 text; add the schema to the search_path of the role or of the database",
                column.name, column.db_type
            ));
        }
        (!fits).then(|| {
            format!(
                "column `{}` is of type {}, which does not hold a field of type {}; declare it {}",
                column.name,
                column.db_type,
                ty.name(),
                fitting(ty)
            )
        })
    }

    fn present(&self) -> &'static str {
        "clock_timestamp() AT TIME ZONE 'UTC'"
    }

    fn recorded_before(&self, seconds: u64) -> String {
        format!("recorded_date < (now() AT TIME ZONE 'UTC') - interval '{seconds} seconds'")
    }

    /// A function of the migration after which no fence is raised by an old token.
    fn fence_is_old(&self) -> String {
        "eventlog.fence_is_old(token, until)".to_owned()
    }

    fn bytes_of_payload(&self) -> &'static str {
        "octet_length(payload::text)"
    }

    fn operand(&self, column: &ColumnInfo, _: ValueType) -> String {
        self.quote(&column.name)
    }

    /// The server would convert the text to the enum, and fail if the enum does not declare it.
    fn state_operand(&self, column: &ColumnInfo) -> String {
        let name = self.quote(&column.name);
        if column.is_enum { format!("{name}::text") } else { name }
    }

    fn null_is_least(&self, descending: bool) -> &'static str {
        if descending { " NULLS LAST" } else { " NULLS FIRST" }
    }

    fn merge_operand(&self, column: &ColumnInfo, ty: ValueType) -> String {
        let name = self.quote(&column.name);
        match ty {
            // A cast to text would drop the trailing spaces that a read returns; `concat` alone
            // would make an empty text of null.
            ValueType::Text if column.db_type == "bpchar" => {
                format!("(CASE WHEN {name} IS NOT NULL THEN concat({name}) END) COLLATE \"C\"")
            }
            // Otherwise an enum sorts by declaration, and a text by its collation.
            ValueType::Text => format!("{name}::text COLLATE \"C\""),
            _ => name,
        }
    }

    fn merge_argument(&self, n: usize, ty: ValueType, column: &ColumnInfo) -> String {
        match ty {
            ValueType::Text => format!("${n}::text"),
            _ => self.argument(n, ty, column),
        }
    }

    fn first_bytes(&self, merged: &str, ty: ValueType) -> String {
        let bytes = match ty {
            ValueType::Text => format!("convert_to({merged}, 'UTF8')"),
            _ => merged.to_owned(),
        };
        format!("substring({bytes} FROM 1 FOR {SORTED_BYTES})")
    }
}
