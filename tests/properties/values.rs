//! A staged value is stored unchanged, or refused by column and nothing is written.

use ekbatan::action::RetryPolicy;
use ekbatan::db::DbErrorKind;
use ekbatan::domain::Field as _;
use ekbatan::domain::New;
use ekbatan::prelude::*;
use ekbatan::repository::Condition;
use serde::{Deserialize, Serialize};
use support::{Dialect, TestDatabase};

use crate::draw::Draw;
use crate::sample::{Sample, refusable, samples, tame, wild};

on_every_database! {
    a_single_row_round_trips_or_is_refused_by_column,
    rows_of_a_batch_round_trip_like_single_rows,
    a_batch_with_a_refused_row_writes_nothing,
}

/// Adds a sample.
struct Add(Sample);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Nothing {}

#[derive(Debug, thiserror::Error)]
#[error("never")]
struct Never;

impl Action for Add {
    const NAME: &'static str = "properties.add";
    type Params = Nothing;
    type Output = Stored<Sample>;
    type Error = Never;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        _: &Nothing,
    ) -> Result<Stored<Sample>, Never> {
        Ok(ctx.plan().add(New::new(self.0.clone(), ())))
    }
}

/// The sample as a read must return it.
fn normal(sample: &Sample) -> Sample {
    let mut sample = sample.clone();
    sample.at.normalize();
    sample.opt_at.normalize();
    sample
}

/// Whether two numbers are equal. Databases that parse JSON do not keep the spelling of numbers.
fn same_number(a: &serde_json::Number, b: &serde_json::Number) -> bool {
    a == b
        || match (a.as_i128(), b.as_i128()) {
            (Some(a), Some(b)) => a == b,
            _ => a.as_f64() == b.as_f64(),
        }
}

fn same_document(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    use serde_json::Value::{Array, Number, Object};
    match (a, b) {
        (Number(a), Number(b)) => same_number(a, b),
        (Array(a), Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_document(a, b))
        }
        (Object(a), Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same_document(a, b)))
        }
        (a, b) => a == b,
    }
}

fn same_float(dialect: Dialect, a: f64, b: f64) -> bool {
    // These two have no negative zero.
    let plain = matches!(dialect, Dialect::MariaDb | Dialect::Sqlite);
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()) || (plain && a == 0.0 && b == 0.0)
}

/// The columns that differ.
fn differences(dialect: Dialect, a: &Sample, b: &Sample) -> Vec<&'static str> {
    let float = |a: f64, b: f64| same_float(dialect, a, b);
    let mut found = Vec::new();
    macro_rules! plain {
        ($($field:ident),*) => {$(
            if a.$field != b.$field { found.push(stringify!($field)); }
        )*};
    }
    plain!(id, flag, tiny, small, big, label, raw, owner, price, day, at, color, state);
    plain!(opt_flag, opt_tiny, opt_small, opt_big, opt_label, opt_raw, opt_owner, opt_price);
    plain!(opt_day, opt_at, opt_color);
    let optional = match (a.opt_ratio, b.opt_ratio) {
        (Some(a), Some(b)) => float(a, b),
        (a, b) => a == b,
    };
    let document = match (&a.opt_doc, &b.opt_doc) {
        (Some(a), Some(b)) => same_document(a, b),
        (a, b) => a == b,
    };
    let rest = [
        ("ratio", float(a.ratio, b.ratio)),
        ("opt_ratio", optional),
        ("doc", same_document(&a.doc, &b.doc)),
        ("opt_doc", document),
    ];
    found.extend(rest.into_iter().filter_map(|(column, same)| (!same).then_some(column)));
    found
}

/// Checks that reads by id and by each column return the row as staged.
async fn assert_kept(db: &TestDatabase, staged: &Sample, answered: &Stored<Sample>) {
    let expected = normal(staged);
    let answer = differences(db.dialect, answered, &expected);
    assert!(answer.is_empty(), "{answer:?} answered {answered:?} for {expected:?}");
    let found = samples(db).get(staged.id).await;
    let found = found.unwrap_or_else(|error| panic!("{error} for {}", brief(&expected)));
    assert_eq!(found.version(), answered.version());
    let read = differences(db.dialect, &found, &expected);
    assert!(read.is_empty(), "{read:?} came back as {} for {}", brief(&found), brief(&expected));
    let conditions = conditions(&expected);
    let both = conditions
        .iter()
        .fold(Sample::ID.eq(expected.id), |all, (_, one, list)| all & one.clone() & list.clone());
    if samples(db).count_where(both).await.unwrap() == 1 {
        return;
    }
    let mut unequal = Vec::new();
    for (column, one, list) in conditions {
        for (how, condition) in [("eq", one), ("is_in", list)] {
            let condition = Sample::ID.eq(expected.id) & condition;
            if samples(db).count_where(condition).await.unwrap() != 1 {
                unequal.push((column, how));
            }
        }
    }
    panic!("{unequal:?} do not find {}", brief(&expected));
}

/// The sample, shortened for a message.
fn brief(sample: &Sample) -> String {
    format!("{sample:?}").chars().take(4_000).collect()
}

/// For each comparable column, the condition that it equals the value of the sample.
fn conditions(sample: &Sample) -> Vec<(&'static str, Condition<Sample>, Condition<Sample>)> {
    let mut conditions = Vec::new();
    macro_rules! conditions {
        ($($field:ident $column:ident),* $(,)?) => {$(
            let value = || sample.$field.clone();
            let column = Sample::$column;
            conditions.push((stringify!($field), column.eq(value()), column.is_in([value()])));
        )*};
    }
    conditions! {
        flag FLAG, tiny TINY, small SMALL, big BIG, ratio RATIO, label LABEL, raw RAW, owner OWNER,
        price PRICE, day DAY, at AT, color COLOR, opt_flag OPT_FLAG, opt_tiny OPT_TINY,
        opt_small OPT_SMALL, opt_big OPT_BIG, opt_ratio OPT_RATIO, opt_label OPT_LABEL,
        opt_raw OPT_RAW, opt_owner OPT_OWNER, opt_price OPT_PRICE, opt_day OPT_DAY, opt_at OPT_AT,
        opt_color OPT_COLOR,
    }
    conditions
}

/// Whether an error names one of these columns.
fn names(message: &str, columns: &[&str]) -> bool {
    columns.iter().any(|column| {
        message.contains(&format!("`{column}`"))
            || message.contains(&format!("'{column}'"))
            || message.contains(&format!(".{column}`"))
    })
}

fn assert_typed(kind: Option<DbErrorKind>, message: &str, columns: &[&str]) {
    let typed = match kind {
        Some(kind) => {
            matches!(kind, DbErrorKind::ValueOutOfRange | DbErrorKind::CheckViolation)
        }
        None => true,
    };
    assert!(typed, "{kind:?} for {columns:?}: {message}");
    assert!(names(message, columns), "{columns:?} are not named by: {message}");
}

async fn a_single_row_round_trips_or_is_refused_by_column(db: &TestDatabase, mut draw: Draw) {
    let executor = ActionExecutor::builder(&db.databases, "com.example.properties")
        .model::<Sample>()
        .build()
        .await
        .unwrap();
    let (mut kept, mut refused) = (0, 0);
    for _ in 0..300 {
        let sample = wild(&mut draw, 12);
        let columns = refusable(db.dialect, &sample);
        match executor.execute(&Add(sample.clone()), Nothing {}).retry(RetryPolicy::none()).await {
            Ok(stored) => {
                assert!(columns.is_empty(), "{columns:?} were taken of {}", brief(&sample));
                assert_kept(db, &sample, &stored).await;
                kept += 1;
            }
            Err(error) => {
                let message = error.to_string();
                assert!(!columns.is_empty(), "{message}\nrefuses {}", brief(&sample));
                let kind = error.database_error().map(|error| error.kind());
                assert_typed(kind, &message, &columns);
                assert_eq!(samples(db).find(sample.id).await.unwrap(), None);
                refused += 1;
            }
        }
    }
    assert!(kept > 100 && refused > 10, "{kept} kept, {refused} refused");
}

/// Draws samples that the database can store.
fn takable(db: &TestDatabase, draw: &mut Draw, count: usize) -> Vec<Sample> {
    std::iter::repeat_with(|| wild(draw, 5))
        .filter(|sample| refusable(db.dialect, sample).is_empty())
        .take(count)
        .collect()
}

async fn rows_of_a_batch_round_trip_like_single_rows(db: &TestDatabase, mut draw: Draw) {
    for rows in [1, 2, 3, 7, 40, 70] {
        let added = takable(db, &mut draw, rows);
        let new = added.iter().map(|sample| New::new(sample.clone(), ()));
        let stored = samples(db).add_all(new).await.unwrap();
        for (sample, stored) in added.iter().zip(&stored) {
            assert_kept(db, sample, stored).await;
        }
        let next = takable(db, &mut draw, rows).into_iter().zip(&added);
        let next: Vec<Sample> = next.map(|(next, old)| Sample { id: old.id, ..next }).collect();
        let changed = stored.into_iter().zip(&next);
        let changed = changed.map(|(stored, next)| stored.apply(|value| *value = next.clone()));
        let updated = samples(db).update_all(changed).await.unwrap();
        for (sample, updated) in next.iter().zip(&updated) {
            assert_eq!(updated.version(), 2);
            assert_kept(db, sample, updated).await;
        }
    }
}

async fn a_batch_with_a_refused_row_writes_nothing(db: &TestDatabase, mut draw: Draw) {
    let old = tame();
    let stored = samples(db).add(New::new(old.clone(), ())).await.unwrap();
    let count = samples(db).count().await.unwrap();
    let mut cases = 0;
    while cases < 25 {
        let bad = wild(&mut draw, 6);
        let columns = refusable(db.dialect, &bad);
        if columns.is_empty() {
            continue;
        }
        cases += 1;
        let mut rows = takable(db, &mut draw, 5);
        rows.insert(draw.below(6), bad.clone());
        let new = rows.iter().map(|sample| New::new(sample.clone(), ()));
        let error = samples(db).add_all(new).await.unwrap_err();
        assert!(names(&error.to_string(), &columns), "{columns:?} are not named by: {error}");
        assert_eq!(samples(db).count().await.unwrap(), count);
        let changed = stored.clone().apply(|value| *value = Sample { id: old.id, ..bad });
        let error = samples(db).update(changed).await.unwrap_err();
        assert!(names(&error.to_string(), &columns), "{columns:?} are not named by: {error}");
        assert_eq!(samples(db).get(old.id).await.unwrap(), stored);
    }
}
