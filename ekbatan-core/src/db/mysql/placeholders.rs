//! Converts queries of the core (`$1`, `$2`, ..) to MySQL's form: one `?` per value, in order, with
//! lists expanded.

use sqlx::Arguments;
use sqlx::mysql::MySqlArguments;

use super::literal::check_compared;
use crate::db::{Arg, DbError, DbErrorKind, Query};
use crate::domain::Value;

/// The maximum number of `?` in a prepared statement; the protocol's limit is 65,535.
const MAX_PLACEHOLDERS: usize = 60_000;

/// A statement ready to be sent.
pub(super) struct BoundQuery {
    pub(super) sql: String,
    pub(super) arguments: MySqlArguments,
    /// Whether the text will be sent again, and so is worth preparing.
    pub(super) is_reusable: bool,
}

/// Expands the placeholders of a query.
///
/// A list is padded with its last value to a power of two, so that few texts are prepared; it does
/// not change the result of an `IN`. A list that is too long for placeholders is written into the
/// text.
pub(super) fn bind(query: &Query) -> Result<BoundQuery, DbError> {
    let values: usize = query.args.iter().map(length).sum();
    let literals = if values > MAX_PLACEHOLDERS { Literals::Lists } else { Literals::None };
    let bound = bind_as(query, values, literals)?;
    // There are many single values, or one is used several times.
    if bound.arguments.len() > MAX_PLACEHOLDERS {
        return bind_as(query, values, Literals::All);
    }
    Ok(bound)
}

/// A query with its values in the text, so that it can be sent in one packet with others.
pub(super) fn written_out(query: &Query) -> Result<String, DbError> {
    bind_as(query, query.args.len() * 16, Literals::All).map(|bound| bound.sql)
}

/// Which values are written into the text.
#[derive(Clone, Copy, PartialEq)]
enum Literals {
    None,
    Lists,
    All,
}

fn bind_as(query: &Query, values: usize, literals: Literals) -> Result<BoundQuery, DbError> {
    let inline = literals != Literals::None;
    let mut bound = BoundQuery {
        sql: String::with_capacity(query.sql.len() + values * 3),
        arguments: MySqlArguments::default(),
        is_reusable: !inline,
    };
    let mut rest = &*query.sql;
    while let Some(at) = rest.find(['$', '`', '\'']) {
        bound.sql.push_str(&rest[..at]);
        rest = &rest[at..];
        let quote = rest.as_bytes()[0];
        if quote != b'$' {
            // A quoted name or text. One with a doubled quote is skipped as two adjacent ones.
            let end = rest[1..].find(char::from(quote)).map_or(rest.len(), |end| end + 2);
            bound.sql.push_str(&rest[..end]);
            rest = &rest[end..];
            continue;
        }
        let digits = rest[1..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - 1);
        let number = rest[1..=digits].parse::<usize>().unwrap_or_default();
        rest = &rest[1 + digits..];
        let as_bytes = rest.starts_with('b');
        rest = &rest[usize::from(as_bytes)..];
        let arg = number.checked_sub(1).and_then(|at| query.args.get(at)).ok_or_else(|| {
            let why = format!("the query names argument ${number}, and has {}", query.args.len());
            DbError::new(DbErrorKind::Other, why)
        })?;
        match arg {
            Arg::One(_, value) if literals == Literals::All => {
                bound.write(std::slice::from_ref(value), as_bytes)?;
            }
            Arg::One(_, value) => bound.add(value, as_bytes)?,
            Arg::Many(_, values) if inline => bound.write(values, as_bytes)?,
            Arg::Many(_, values) => bound.add_all(values, as_bytes)?,
        }
    }
    bound.sql.push_str(rest);
    Ok(bound)
}

fn length(arg: &Arg) -> usize {
    match arg {
        Arg::One(..) => 1,
        Arg::Many(_, values) => values.len().next_power_of_two(),
    }
}

impl BoundQuery {
    fn add(&mut self, value: &Value, as_bytes: bool) -> Result<(), DbError> {
        self.sql.push('?');
        check_compared(value)?;
        let arguments = &mut self.arguments;
        let added = match value {
            Value::Null => arguments.add(None::<&str>),
            Value::Bool(v) => arguments.add(v),
            Value::Int(v) => arguments.add(v),
            Value::Float(v) => arguments.add(v),
            Value::Text(v) | Value::Json(v) => arguments.add(v.as_str()),
            Value::Bytes(v) => arguments.add(v.as_slice()),
            Value::Uuid(v) if as_bytes => arguments.add(v.as_bytes().as_slice()),
            Value::Uuid(v) => arguments.add(v.to_string()),
            Value::Decimal(v) => arguments.add(v),
            Value::Date(v) => arguments.add(v),
            Value::Timestamp(v) => arguments.add(v.naive_utc()),
        };
        added.map_err(|e| {
            DbError::new(DbErrorKind::ValueOutOfRange, format!("a value cannot be sent: {e}"))
        })
    }

    fn add_all(&mut self, values: &[Value], as_bytes: bool) -> Result<(), DbError> {
        let Some(last) = values.last() else {
            // The empty list: `IN` is false for every value, null included.
            self.sql.push_str("SELECT NULL FROM DUAL WHERE FALSE");
            return Ok(());
        };
        let fill = std::iter::repeat_n(last, values.len().next_power_of_two() - values.len());
        for (n, value) in values.iter().chain(fill).enumerate() {
            self.sql.push_str(if n == 0 { "" } else { ", " });
            self.add(value, as_bytes)?;
        }
        Ok(())
    }

    fn write(&mut self, values: &[Value], as_bytes: bool) -> Result<(), DbError> {
        // Only the literal of a UUID depends on the column.
        let column = crate::db::ColumnInfo {
            name: String::new(),
            db_type: if as_bytes { "binary(16)" } else { "" }.to_owned(),
            numeric: None,
            length: None,
            is_enum: false,
            is_padded: false,
            nulls: crate::db::Nulls::Refused,
            required: false,
            is_computed: false,
            references: Vec::new(),
        };
        for (n, value) in values.iter().enumerate() {
            self.sql.push_str(if n == 0 { "" } else { ", " });
            super::literal::write_literal(&mut self.sql, value, &column)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ValueType;

    fn bound(sql: &str, args: Vec<Arg>) -> BoundQuery {
        bind(&Query { sql: sql.into(), args, columns: Vec::new().into() }).unwrap()
    }

    fn int(value: i64) -> Arg {
        Arg::One(ValueType::Int, Value::Int(value))
    }

    fn ints(count: i64) -> Arg {
        Arg::Many(ValueType::Int, (0..count).map(Value::Int).collect())
    }

    #[test]
    fn each_use_of_an_argument_is_a_placeholder() {
        let bound = bound("a > $2 OR (a = $2 AND b = $1b)", vec![int(1), int(2)]);
        assert_eq!(bound.sql, "a > ? OR (a = ? AND b = ?)");
        assert_eq!(bound.arguments.len(), 3);
    }

    #[test]
    fn too_many_single_values_become_a_part_of_the_text() {
        let sql = "a = $1 OR ".repeat(MAX_PLACEHOLDERS) + "a = $2";
        let bound = bound(&sql, vec![int(1), int(2)]);
        assert!(bound.arguments.len() == 0 && bound.sql.ends_with("a = 1 OR a = 2"));
        assert!(!bound.is_reusable);
    }

    #[test]
    fn quoted_text_is_unchanged() {
        let bound = bound("`a$1` = $1 AND `b``$1` <> '$1''' AND c = $1", vec![int(1)]);
        assert_eq!(bound.sql, "`a$1` = ? AND `b``$1` <> '$1''' AND c = ?");
    }

    #[test]
    fn lists_are_expanded_to_few_lengths() {
        assert_eq!(bound("a IN ($1)", vec![ints(3)]).sql, "a IN (?, ?, ?, ?)");
        assert_eq!(
            bound("a IN ($1)", vec![ints(0)]).sql,
            "a IN (SELECT NULL FROM DUAL WHERE FALSE)"
        );
        let long = bound("a IN ($1) AND b = $2", vec![ints(60_001), int(1)]);
        assert!(long.sql.starts_with("a IN (0, 1, 2,") && long.sql.ends_with("AND b = ?"));
        assert!(!long.is_reusable);
        assert_eq!(long.arguments.len(), 1);
    }

    #[test]
    fn a_query_for_a_packet_has_its_values_in_the_text() {
        let id = uuid::Uuid::from_u128(0xab);
        let by_id = |sql: &str| Query {
            sql: sql.into(),
            args: vec![Arg::One(ValueType::Uuid, Value::Uuid(id))],
            columns: Vec::new().into(),
        };
        assert_eq!(written_out(&by_id("`a$1` = $1")).unwrap(), format!("`a$1` = '{id}'"));
        assert_eq!(
            written_out(&by_id("a = $1b AND b <> 'DELETED'")).unwrap(),
            "a = x'000000000000000000000000000000ab' AND b <> 'DELETED'"
        );
    }

    #[test]
    fn a_missing_argument_is_named() {
        let query = Query { sql: "a = $2".into(), args: vec![int(1)], columns: Vec::new().into() };
        assert!(bind(&query).err().unwrap().to_string().contains("$2"));
    }
}
