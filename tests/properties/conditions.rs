//! A condition matches the same rows in the database and in memory, with the rules of SQL for NULL.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use ekbatan::chrono::NaiveDate;
use ekbatan::domain::{Comparable, Field as _, New};
use ekbatan::prelude::*;
use ekbatan::repository::{Column, Condition};
use proptest::prelude::{Strategy, any};
use support::{Dialect, TestDatabase};

use crate::draw::Draw;
use crate::edges;
use crate::sample::{Color, Sample, refusable, samples, wild};

on_every_database! {
    nested_conditions_match_as_in_memory,
    list_conditions_match_their_members,
}

/// Adds samples with edge values and returns them as stored.
pub async fn add(db: &TestDatabase, draw: &mut Draw, count: usize) -> Vec<Sample> {
    let mut rows: Vec<Sample> = std::iter::repeat_with(|| wild(draw, 2))
        .filter(|row| refusable(db.dialect, row).is_empty())
        .filter(|row| {
            let texts = row.label.len() + row.opt_label.as_ref().map_or(0, String::len);
            let bytes = row.raw.len() + row.opt_raw.as_ref().map_or(0, Vec::len);
            let documents = format!("{}{:?}", row.doc, row.opt_doc).len();
            texts + bytes + documents < 5_000
        })
        .take(count)
        .collect();
    for row in &mut rows {
        row.at.normalize();
        row.opt_at.normalize();
    }
    samples(db).add_all(rows.iter().cloned().map(|row| New::new(row, ()))).await.unwrap();
    rows
}

/// The order of two fields, or `None` if one of them is NULL.
trait Compare: Comparable + Clone + 'static {
    fn compare(&self, other: &Self) -> Option<Ordering>;
    /// Whether all databases order the values of this type alike.
    fn is_ordered(_: Dialect) -> bool {
        true
    }
}

macro_rules! by_order {
    ($($ty:ty),*) => {$(
        impl Compare for $ty {
            fn compare(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }
    )*};
}
by_order!(bool, i16, i32, i64, String, Vec<u8>, Decimal, NaiveDate, DateTime<Utc>);

impl Compare for Uuid {
    fn compare(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
    fn is_ordered(dialect: Dialect) -> bool {
        dialect != Dialect::MariaDb
    }
}

impl Compare for f64 {
    /// As in PostgreSQL, the only database that stores NaN.
    fn compare(&self, other: &Self) -> Option<Ordering> {
        self.partial_cmp(other).or(Some(self.is_nan().cmp(&other.is_nan())))
    }
}

impl Compare for Color {
    fn compare(&self, other: &Self) -> Option<Ordering> {
        Some((*self as u8).cmp(&(*other as u8)))
    }
    fn is_ordered(_: Dialect) -> bool {
        false
    }
}

impl<F: Compare> Compare for Option<F> {
    fn compare(&self, other: &Self) -> Option<Ordering> {
        self.as_ref()?.compare(other.as_ref()?)
    }
    fn is_ordered(dialect: Dialect) -> bool {
        F::is_ordered(dialect)
    }
}

fn is_null<F: Compare>(field: &F) -> bool {
    field.compare(field).is_none()
}

/// True, false, or unknown because of a NULL.
type Truth = Option<bool>;

/// A condition, its evaluation in memory, and its text.
struct Case {
    condition: Condition<Sample>,
    means: Box<dyn Fn(&Sample) -> Truth>,
    text: String,
}

fn is_in<F: Compare>(value: &F, list: &[F]) -> Truth {
    let (nulls, values): (Vec<_>, Vec<_>) = list.iter().partition(|item| is_null(*item));
    match is_null(value) {
        true if !nulls.is_empty() => Some(true),
        true if !values.is_empty() => None,
        _ => Some(values.iter().any(|item| item.compare(value) == Some(Ordering::Equal))),
    }
}

fn compare<F: Compare + std::fmt::Debug>(
    dialect: Dialect,
    draw: &mut Draw,
    column: Column<Sample, F>,
    values: &[F],
    get: fn(&Sample) -> F,
) -> Case {
    let value = values[draw.below(values.len())].clone();
    let operator = if F::is_ordered(dialect) { draw.below(7) } else { [0, 1, 6][draw.below(3)] };
    let test = |condition, text: &str, means: fn(Ordering) -> bool| {
        let text = format!("{column:?} {text} {value:?}");
        let value = value.clone();
        Case { condition, means: Box::new(move |row| get(row).compare(&value).map(means)), text }
    };
    let v = value.clone();
    match operator {
        0 | 1 if is_null(&value) => Case {
            condition: if operator == 0 { column.eq(v) } else { column.ne(v) },
            means: Box::new(move |row| Some(is_null(&get(row)) == (operator == 0))),
            text: format!("{column:?} eq/ne null ({operator})"),
        },
        0 => test(column.eq(v), "=", Ordering::is_eq),
        1 => test(column.ne(v), "<>", Ordering::is_ne),
        2 => test(column.lt(v), "<", Ordering::is_lt),
        3 => test(column.le(v), "<=", Ordering::is_le),
        4 => test(column.gt(v), ">", Ordering::is_gt),
        5 => test(column.ge(v), ">=", Ordering::is_ge),
        _ => {
            let length = draw.below(5);
            let list: Vec<F> =
                (0..length).map(|_| values[draw.below(values.len())].clone()).collect();
            Case {
                condition: column.is_in(list.clone()),
                text: format!("{column:?} in {list:?}"),
                means: Box::new(move |row| is_in(&get(row), &list)),
            }
        }
    }
}

/// Draws a condition on any column with values that occur in the rows.
fn leaf(dialect: Dialect, draw: &mut Draw, rows: &[Sample]) -> Case {
    macro_rules! columns {
        ($($field:ident $column:ident),* $(,)?) => {{
            let cases: Vec<fn(Dialect, &mut Draw, &[Sample]) -> Case> = vec![$(
                |dialect, draw, rows| {
                    let values: Vec<_> = rows.iter().map(|row| row.$field.clone()).collect();
                    compare(dialect, draw, Sample::$column, &values, |row| row.$field.clone())
                }
            ),*];
            cases[draw.below(cases.len())](dialect, draw, rows)
        }};
    }
    columns! {
        flag FLAG, tiny TINY, small SMALL, big BIG, ratio RATIO, label LABEL, raw RAW, owner OWNER,
        price PRICE, day DAY, at AT, color COLOR, opt_flag OPT_FLAG, opt_tiny OPT_TINY,
        opt_small OPT_SMALL, opt_big OPT_BIG, opt_ratio OPT_RATIO, opt_label OPT_LABEL,
        opt_raw OPT_RAW, opt_owner OPT_OWNER, opt_price OPT_PRICE, opt_day OPT_DAY, opt_at OPT_AT,
        opt_color OPT_COLOR,
    }
}

fn tree(dialect: Dialect, draw: &mut Draw, rows: &[Sample], depth: usize) -> Case {
    if depth == 0 || draw.once_in(6) {
        return leaf(dialect, draw, rows);
    }
    let a = tree(dialect, draw, rows, depth - 1);
    match draw.below(5) {
        0 => Case {
            condition: !a.condition,
            means: Box::new(move |row| (a.means)(row).map(|truth| !truth)),
            text: format!("!({})", a.text),
        },
        1 | 2 => {
            let b = tree(dialect, draw, rows, depth - 1);
            Case {
                condition: a.condition & b.condition,
                means: Box::new(move |row| match ((a.means)(row), (b.means)(row)) {
                    (Some(false), _) | (_, Some(false)) => Some(false),
                    (a, b) => Some(a? && b?),
                }),
                text: format!("({} & {})", a.text, b.text),
            }
        }
        _ => {
            let b = tree(dialect, draw, rows, depth - 1);
            Case {
                condition: a.condition | b.condition,
                means: Box::new(move |row| match ((a.means)(row), (b.means)(row)) {
                    (Some(true), _) | (_, Some(true)) => Some(true),
                    (a, b) => Some(a? || b?),
                }),
                text: format!("({} | {})", a.text, b.text),
            }
        }
    }
}

fn ids<'r>(rows: impl IntoIterator<Item = &'r Sample>) -> BTreeSet<Uuid> {
    rows.into_iter().map(|row| row.id.uuid()).collect()
}

async fn nested_conditions_match_as_in_memory(db: &TestDatabase, mut draw: Draw) {
    let rows = add(db, &mut draw, 200).await;
    let mut found_some = 0;
    for n in 0..200 {
        let Case { condition, means, text } = tree(db.dialect, &mut draw, &rows, n % 5);
        let expected = ids(rows.iter().filter(|row| means(row) == Some(true)));
        let count = samples(db).count_where(condition.clone()).await;
        let count = count.unwrap_or_else(|error| panic!("{error} for {text}"));
        let found = samples(db).find_where(condition).await.unwrap();
        assert_eq!(count, found.len() as u64, "{text}");
        let found = ids(found.iter().map(|row| &**row));
        if found != expected {
            let odd: Vec<_> = found.symmetric_difference(&expected).collect();
            let odd = rows.iter().find(|row| row.id.uuid() == *odd[0]).unwrap();
            panic!("{text}\n{} found, {} expected; {odd:?}", found.len(), expected.len());
        }
        found_some += usize::from(!expected.is_empty() && expected.len() < rows.len());
    }
    assert!(found_some > 60, "{found_some} conditions matched some rows but not all");
}

/// Long lists with many values that do not occur and a few that do.
async fn list_conditions_match_their_members(db: &TestDatabase, mut draw: Draw) {
    let rows = add(db, &mut draw, 60).await;
    macro_rules! lists {
        ($($field:ident $column:ident: $strategy:expr;)*) => {$(
            for length in [0, 1, 2, 5_000] {
                let mut list: Vec<_> = (0..length).map(|_| draw.one($strategy)).collect();
                for _ in 0..length.min(3) {
                    let at = draw.below(length);
                    list[at] = rows[draw.below(rows.len())].$field.clone().into();
                }
                let truths = rows.iter().map(|row| is_in(&row.$field, &list));
                let truths: Vec<Truth> = truths.collect();
                let of = |truth: bool| {
                    ids(rows.iter().zip(&truths).filter(|of| *of.1 == Some(truth)).map(|of| of.0))
                };
                let condition = Sample::$column.is_in(list.iter().cloned());
                for (condition, expected) in [(condition.clone(), of(true)), (!condition, of(false))] {
                    let found = samples(db).find_where(condition).await.unwrap();
                    let found = ids(found.iter().map(|row| &**row));
                    assert_eq!(found, expected, "{} of {length}", stringify!($field));
                }
            }
        )*};
    }
    let day =
        || (365_250..3_652_059).prop_map(|day| NaiveDate::from_num_days_from_ce_opt(day).unwrap());
    let at = || {
        any::<i32>().prop_map(|at| DateTime::from_timestamp_micros(i64::from(at) * 7_001).unwrap())
    };
    lists! {
        flag FLAG: any::<bool>();
        tiny TINY: any::<i16>();
        small SMALL: any::<i32>();
        big BIG: edges::integer();
        ratio RATIO: -1e9..1e9_f64;
        label LABEL: "[a-z'\\\\$?% ]{0,8}";
        raw RAW: proptest::collection::vec(any::<u8>(), 0..9);
        owner OWNER: any::<u128>().prop_map(|bits| uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid());
        price PRICE: edges::decimal();
        day DAY: day();
        at AT: at();
        opt_big OPT_BIG: edges::integer().prop_map(Some);
        opt_label OPT_LABEL: "[a-z'\\\\$?% ]{0,8}".prop_map(Some);
        opt_price OPT_PRICE: edges::decimal().prop_map(Some);
        opt_ratio OPT_RATIO: (-1e9..1e9_f64).prop_map(Some);
    }
}
