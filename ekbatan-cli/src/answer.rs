//! What the program prints: tables and sentences for people, JSON for programs.

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Map, Value, json};

/// A row of a table.
pub type Row = Map<String, Value>;

/// What was asked for.
pub enum Answer {
    /// A list with these columns, and what is said if it is empty.
    List { columns: &'static [&'static str], rows: Vec<Row>, empty: &'static str },
    /// One thing with all that is known of it.
    One(Vec<(&'static str, Value)>),
    /// What was done or would be done.
    Said { sentence: String, facts: Value },
}

/// The longest text in a table. JSON has all of it.
const LONGEST: usize = 60;

impl Answer {
    /// Makes a row from the values of the columns.
    pub fn row<const N: usize>(values: [(&str, Value); N]) -> Row {
        values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    pub fn print(self, as_json: bool) {
        match self {
            Self::List { rows, .. } if as_json => println!("{}", json!(rows)),
            Self::List { rows, empty, .. } if rows.is_empty() => println!("{empty}"),
            Self::List { columns, rows, .. } => print_table(columns, &rows),
            Self::One(facts) if as_json => {
                let facts: Row =
                    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
                println!("{}", json!(facts));
            }
            Self::One(facts) => {
                let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
                for (name, value) in facts {
                    println!("{name:width$}  {}", text(&value));
                }
            }
            Self::Said { facts, .. } if as_json => println!("{facts}"),
            Self::Said { sentence, .. } => println!("{sentence}"),
        }
    }
}

fn print_table(columns: &[&str], rows: &[Row]) {
    let cell = |row: &Row, name: &str| {
        let text = row.get(name).map(text).unwrap_or_default();
        let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if line.chars().count() > LONGEST {
            let cut: String = line.chars().take(LONGEST - 2).collect();
            format!("{cut}..")
        } else {
            line
        }
    };
    let lines: Vec<Vec<String>> =
        std::iter::once(columns.iter().map(|name| (*name).to_owned()).collect())
            .chain(rows.iter().map(|row| columns.iter().map(|name| cell(row, name)).collect()))
            .collect();
    let width = |at: usize| {
        lines.iter().filter_map(|line| line.get(at)).map(|text| text.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns.len()).map(|at| width(at).unwrap_or_default()).collect();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(text, width)| format!("{text:width$}"));
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

/// A moment as the program shows it.
pub fn time(date: impl Into<Option<DateTime<Utc>>>) -> Value {
    date.into().map(|date| date.to_rfc3339_opts(SecondsFormat::Millis, true)).into()
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
