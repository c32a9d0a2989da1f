//! The SQL fragments of MySQL and MariaDB.

use std::borrow::Cow;

use super::flavour::Flavour;
use super::has_run::{has_run_before, swaps};
use crate::db::fence::is_old;
use crate::db::{ColumnInfo, DbError, Reference, SORTED_BYTES, Syntax, nearest_date};
use crate::domain::{Table, Value, ValueType};

/// The seconds since 1970.
pub(super) const SECONDS: &str = "TIMESTAMPDIFF(SECOND, '1970-01-01', UTC_TIMESTAMP())";

/// The schema that the code uses for the framework's tables.
const EVENTLOG: &str = "eventlog";

pub(super) struct MySqlSyntax {
    pub(super) flavour: Flavour,
    /// The database that stands for the schema `eventlog`.
    pub(super) eventlog: String,
}

impl MySqlSyntax {
    /// The database of a schema; the configuration names the one for `eventlog`.
    pub(super) fn database<'n>(&'n self, schema: &'n str) -> &'n str {
        if schema == EVENTLOG { &self.eventlog } else { schema }
    }

    /// A foreign key to a table of a database, as seen from the session's database `here`.
    /// `column` is `None` for a key of several columns.
    pub(super) fn reference(
        &self,
        (database, here): (&str, &str),
        table: &str,
        column: Option<&String>,
    ) -> Reference {
        let (name, quoted) = if database == here {
            (table.to_owned(), self.quote(table))
        } else {
            let schema = if database == self.eventlog { EVENTLOG } else { database };
            let quoted = format!("{}.{}", self.quote(database), self.quote(table));
            (format!("{schema}.{table}"), quoted)
        };
        Reference { table: name, column: column.map(|column| (quoted, self.quote(column))) }
    }

    /// Creates the database of the framework's tables, with the table of applied migrations.
    pub(super) fn create_eventlog(&self) -> String {
        let eventlog = self.quote(&self.eventlog);
        // A source contains the name of a database, which has up to 64 characters.
        format!(
            "CREATE DATABASE IF NOT EXISTS {eventlog}; \
             CREATE TABLE IF NOT EXISTS {eventlog}.migrations (source varchar(128) NOT NULL, version bigint NOT NULL, \
             name varchar(255) NOT NULL, checksum varchar(64) NOT NULL, applied_date datetime(6) NOT NULL, \
             PRIMARY KEY (source, version)) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {}",
            match self.flavour {
                Flavour::MySql => "utf8mb4_0900_bin",
                Flavour::MariaDb => "utf8mb4_nopad_bin",
            }
        )
    }
}

/// The type without length and signedness.
fn base(column: &ColumnInfo) -> &str {
    column.db_type.split(['(', ' ']).next().unwrap_or_default()
}

/// Whether the column stores UUIDs as 16 bytes.
pub(super) fn is_binary_uuid(column: &ColumnInfo) -> bool {
    column.db_type == "binary(16)"
}

/// The length of the type `of`, as in `varchar(255)`.
pub(super) fn length(column: &ColumnInfo, of: &str) -> Option<usize> {
    column.db_type.strip_prefix(of)?.strip_prefix('(')?.split(')').next()?.parse().ok()
}

/// Whether the declared type holds no value with more characters or bytes.
fn is_at_most(column: &ColumnInfo, most: usize) -> bool {
    let declared = length(column, "varchar").or(length(column, "varbinary"));
    matches!(base(column), "char" | "binary" | "enum" | "tinyblob")
        || declared.is_some_and(|length| length <= most)
}

impl Syntax for MySqlSyntax {
    fn quote(&self, identifier: &str) -> String {
        let mut quoted = String::with_capacity(identifier.len() + 2);
        quoted.push('`');
        for part in identifier.split_inclusive('`') {
            quoted.push_str(part);
            quoted.push_str(if part.ends_with('`') { "`" } else { "" });
        }
        quoted.push('`');
        quoted
    }

    fn table(&self, table: &Table) -> String {
        match table.schema {
            Some(schema) => {
                format!("{}.{}", self.quote(self.database(schema)), self.quote(table.name))
            }
            None => self.quote(table.name),
        }
    }

    /// `$n` as in all dialects; the connection converts it to a `?`. `$nb` is a UUID as bytes.
    fn argument(&self, n: usize, ty: ValueType, column: &ColumnInfo) -> String {
        if ty == ValueType::Uuid && is_binary_uuid(column) {
            format!("${n}b")
        } else {
            format!("${n}")
        }
    }

    fn any(&self, n: usize, ty: ValueType, column: &ColumnInfo) -> String {
        format!("{} IN ({})", self.operand(column, ty), self.argument(n, ty, column))
    }

    fn nearest(&self, value: &Value) -> Option<Value> {
        match value {
            Value::Float(float) if float.is_nan() => Some(Value::Float(f64::MAX)),
            Value::Float(float) if float.is_infinite() => {
                Some(Value::Float(float.clamp(f64::MIN, f64::MAX)))
            }
            value => nearest_date(value),
        }
    }

    fn misfit(&self, column: &ColumnInfo, ty: ValueType) -> Option<String> {
        let mariadb = self.flavour == Flavour::MariaDb;
        let unsigned = column.db_type.contains("unsigned");
        let (fits, instead) = match (ty, base(column)) {
            (ValueType::Bool, "tinyint") => (true, ""),
            (ValueType::Bool, _) => (false, "boolean"),
            (ValueType::Int, "bigint") => (!unsigned, "bigint, which has a sign as the field has"),
            (ValueType::Int, "tinyint" | "smallint" | "mediumint" | "int") => (true, ""),
            (ValueType::Int, _) => (false, "bigint"),
            // A `float` keeps seven of a field's sixteen digits.
            (ValueType::Float, of) => (of == "double", "double"),
            (
                ValueType::Text,
                "char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext" | "enum",
            ) => (true, ""),
            (ValueType::Text, _) => (false, "varchar(255) or text"),
            (
                ValueType::Bytes,
                "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob",
            ) => (true, ""),
            (ValueType::Bytes, _) => (false, "varbinary(255) or blob"),
            (ValueType::Uuid, "uuid") => (true, ""),
            (ValueType::Uuid, _) => (
                matches!(&*column.db_type, "char(36)" | "binary(16)"),
                if mariadb { "uuid, char(36) or binary(16)" } else { "char(36) or binary(16)" },
            ),
            (ValueType::Decimal, of) => (of == "decimal", "decimal(20,2)"),
            (ValueType::Date, of) => (of == "date", "date"),
            // Fewer digits would round silently.
            (ValueType::Timestamp, _) => (
                matches!(&*column.db_type, "datetime(6)" | "timestamp(6)"),
                "datetime(6), which keeps microseconds",
            ),
            // MariaDB's json is an alias of longtext.
            (ValueType::Json, of) => (of == "json" || (mariadb && of == "longtext"), "json"),
        };
        (!fits).then(|| {
            format!(
                "column `{}` is of type {}, which does not hold a field of type {}; declare it {instead}",
                column.name,
                column.db_type,
                ty.name()
            )
        })
    }

    /// Texts compare by their UTF-8 bytes, whatever the column's character set and collation.
    /// MariaDB's UUIDs compare as texts, because MariaDB orders them differently.
    fn merge_operand(&self, column: &ColumnInfo, ty: ValueType) -> String {
        let name = self.operand(column, ty);
        match (ty, base(column)) {
            (ValueType::Text, _) => format!("CAST(CONVERT({name} USING utf8mb4) AS BINARY)"),
            (ValueType::Uuid, "uuid") => format!("CAST({name} AS CHAR(36))"),
            _ => name,
        }
    }

    fn sorts_by_all_bytes(&self) -> bool {
        self.flavour == Flavour::MySql
    }

    fn first_bytes(&self, merged: &str, _: ValueType) -> String {
        format!("LEFT(CAST({merged} AS BINARY), {SORTED_BYTES})")
    }

    /// A text is converted before it is merged, so no index has its order.
    fn has_few_bytes(&self, column: &ColumnInfo, ty: ValueType) -> bool {
        ty == ValueType::Bytes && is_at_most(column, SORTED_BYTES)
    }

    /// MariaDB sorts by the first 1,024 bytes (`max_sort_length`) only, and so does MySQL where a
    /// collation pads. A page that compared more than it sorts by would lose rows, so both use the first bytes.
    fn page_key(&self, expression: String, column: &ColumnInfo, ty: ValueType) -> String {
        let sorted = match ty {
            ValueType::Text => 255,
            ValueType::Bytes => SORTED_BYTES,
            _ => return expression,
        };
        let is_cut = self.flavour == Flavour::MariaDb || column.is_padded;
        if is_cut && !is_at_most(column, sorted) {
            format!("LEFT({expression}, {sorted})")
        } else {
            expression
        }
    }

    fn framework_migration<'t>(&self, text: &'t str) -> Cow<'t, str> {
        text.replace("{eventlog}", &self.quote(&self.eventlog)).into()
    }

    fn has_run_before(&self, statement: &str, error: &DbError) -> bool {
        has_run_before(statement, error)
    }

    fn swaps(&self, statement: &str) -> bool {
        swaps(statement)
    }

    fn present(&self) -> &'static str {
        "UTC_TIMESTAMP(6)"
    }

    fn recorded_before(&self, seconds: u64) -> String {
        format!("recorded_date < UTC_TIMESTAMP(6) - INTERVAL {seconds} SECOND")
    }

    fn fence_is_old(&self) -> String {
        is_old(SECONDS, |seconds| format!("until < UTC_TIMESTAMP(6) - INTERVAL {seconds} SECOND"))
    }

    /// No range of pairs is looked up in an index here.
    fn of_generation(&self, g: usize, i: usize) -> String {
        format!("fanned_out = ${g} AND id >= ${i}")
    }

    /// The primary key has the order, too, and would read all later events.
    fn by_generation(&self) -> &'static str {
        " FORCE INDEX (events_fanned_out)"
    }

    /// An enum is ordered by declaration but compared as text. A page needs one order for both, so
    /// an enum is converted to text.
    fn operand(&self, column: &ColumnInfo, _: ValueType) -> String {
        let name = self.quote(&column.name);
        if column.is_enum { format!("CONCAT({name})") } else { name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::fixtures::column;

    fn misfit(flavour: Flavour, db_type: &str, ty: ValueType) -> Option<String> {
        let syntax = MySqlSyntax { flavour, eventlog: "log".to_owned() };
        syntax.misfit(&column("c", db_type), ty)
    }

    #[test]
    fn a_lossy_column_does_not_fit_and_the_error_names_one_that_does() {
        use Flavour::{MariaDb, MySql};
        for (flavour, db_type, ty, instead) in [
            (MySql, "datetime(3)", ValueType::Timestamp, "datetime(6)"),
            (MySql, "datetime", ValueType::Timestamp, "datetime(6)"),
            (MySql, "bigint unsigned", ValueType::Int, "bigint"),
            (MariaDb, "bigint(20) unsigned zerofill", ValueType::Int, "bigint"),
            (MySql, "float", ValueType::Float, "double"),
            (MySql, "varchar(36)", ValueType::Uuid, "char(36) or binary(16)"),
            (MariaDb, "varchar(36)", ValueType::Uuid, "uuid, char(36) or binary(16)"),
            (MySql, "longtext", ValueType::Json, "json"),
            (MySql, "bigint", ValueType::Bool, "boolean"),
        ] {
            let problem = misfit(flavour, db_type, ty).unwrap();
            assert!(problem.contains(instead) && problem.contains(db_type), "{problem}");
        }
        for (flavour, db_type, ty) in [
            (MySql, "timestamp(6)", ValueType::Timestamp),
            (MySql, "int unsigned", ValueType::Int),
            (MariaDb, "bigint(20)", ValueType::Int),
            (MariaDb, "longtext", ValueType::Json),
            (MariaDb, "uuid", ValueType::Uuid),
            (MySql, "tinyint(1)", ValueType::Bool),
            (MySql, "enum('a','b')", ValueType::Text),
        ] {
            assert_eq!(misfit(flavour, db_type, ty), None);
        }
    }

    #[test]
    fn mariadb_orders_pages_by_the_bytes_that_it_sorts() {
        let key = |flavour, db_type: &str, ty| {
            let syntax = MySqlSyntax { flavour, eventlog: "log".to_owned() };
            syntax.page_key("c".to_owned(), &column("c", db_type), ty)
        };
        for (db_type, ty, expected) in [
            ("longtext", ValueType::Text, "LEFT(c, 255)"),
            ("varchar(256)", ValueType::Text, "LEFT(c, 255)"),
            ("varchar(255)", ValueType::Text, "c"),
            ("longblob", ValueType::Bytes, "LEFT(c, 1000)"),
            ("binary(16)", ValueType::Uuid, "c"),
        ] {
            assert_eq!(key(Flavour::MariaDb, db_type, ty), expected, "{db_type}");
            assert_eq!(key(Flavour::MySql, db_type, ty), "c", "{db_type}");
        }
    }

    #[test]
    fn short_bytes_are_merged_as_they_are() {
        let syntax = MySqlSyntax { flavour: Flavour::MariaDb, eventlog: "log".to_owned() };
        for (db_type, is_short) in [
            ("binary(16)", true),
            ("varbinary(1000)", true),
            ("varbinary(1001)", false),
            ("tinyblob", true),
            ("blob", false),
        ] {
            let column = column("c", db_type);
            assert_eq!(syntax.has_few_bytes(&column, ValueType::Bytes), is_short, "{db_type}");
        }
        assert!(!syntax.has_few_bytes(&column("c", "varchar(9)"), ValueType::Text));
    }

    #[test]
    fn the_eventlog_is_the_configured_database_quoted() {
        let syntax = MySqlSyntax { flavour: Flavour::MySql, eventlog: "a`b".to_owned() };
        assert_eq!(
            syntax.framework_migration("CREATE TABLE {eventlog}.x"),
            "CREATE TABLE `a``b`.x"
        );
        assert!(syntax.create_eventlog().starts_with("CREATE DATABASE IF NOT EXISTS `a``b`;"));
    }
}
