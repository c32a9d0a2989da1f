//! What the program prints: tables and sentences for people, JSON for programs.

use std::io::{self, Write};

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

    pub fn print(self, as_json: bool) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match self.write(as_json, &mut out).and_then(|()| out.flush()) {
            // Its reader, such as `head`, has enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }

    fn write(self, as_json: bool, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::List { rows, .. } if as_json => writeln!(out, "{}", json!(rows)),
            Self::List { rows, empty, .. } if rows.is_empty() => writeln!(out, "{empty}"),
            Self::List { columns, rows, .. } => write_table(columns, &rows, out),
            Self::One(facts) if as_json => {
                let facts: Row =
                    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
                writeln!(out, "{}", json!(facts))
            }
            Self::One(facts) => {
                let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
                facts
                    .into_iter()
                    .try_for_each(|(name, value)| writeln!(out, "{name:width$}  {}", text(&value)))
            }
            Self::Said { facts, .. } if as_json => writeln!(out, "{facts}"),
            Self::Said { sentence, .. } => writeln!(out, "{sentence}"),
        }
    }
}

fn write_table(columns: &[&str], rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    let cell = |row: &Row, name: &str| {
        let line = row.get(name).map(text).unwrap_or_default().replace('\n', " ");
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
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// A moment as the program shows it.
pub fn time(date: impl Into<Option<DateTime<Utc>>>) -> Value {
    date.into().map(|date| date.to_rfc3339_opts(SecondsFormat::Millis, true)).into()
}

/// A text for people. A terminal would obey the control characters of a stored text: only line breaks stay.
pub fn for_people(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n', " ")
}

/// A value for people.
fn text(value: &Value) -> String {
    let text = match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    for_people(&text)
}
