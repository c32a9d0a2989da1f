//! Conditions on every type of column.

use std::fmt::Debug;

use ekbatan::db::DbErrorKind;
use ekbatan::domain::Comparable;
use ekbatan::prelude::*;
use ekbatan::repository::{Column, Condition, PageRequest};
use support::things::{Cents, Color, Thing, quiet, thing};
use support::{Dialect, TestDatabase};

on_every_database! {
    integers_are_compared,
    decimals_are_compared_by_value,
    floats_are_compared,
    texts_are_compared,
    booleans_are_compared,
    bytes_are_compared,
    dates_are_compared,
    timestamps_are_compared,
    uuids_and_ids_are_compared,
    enums_and_newtypes_are_compared,
    nulls_are_neither_equal_nor_unequal_to_a_value,
    conditions_are_combined,
    a_list_may_be_empty_or_long,
    a_list_of_floats_has_a_bound_on_sqlite,
    a_chain_of_terms_may_be_long,
    conditions_that_are_nested_too_deeply_are_refused,
    a_value_that_the_database_does_not_hold_is_refused,
    a_number_that_is_no_boolean_is_refused_by_column,
}

/// The labels of the things that match a condition. Checks that every kind of read agrees.
async fn labels(db: &TestDatabase, condition: Condition<Thing>) -> String {
    let things = db.things();
    let found = things.find_where(condition.clone()).await.unwrap();
    assert_eq!(things.count_where(condition.clone()).await.unwrap(), found.len() as u64);
    assert_eq!(things.exists_where(condition.clone()).await.unwrap(), !found.is_empty());
    let page = things.page(PageRequest::first(100).filter(condition)).await.unwrap();
    assert_eq!(page.rows.len(), found.len());
    let mut labels: Vec<String> = found.into_iter().map(|thing| thing.label.clone()).collect();
    labels.sort();
    labels.concat()
}

/// Adds things labelled 0, 1 and 2 with ascending values, and checks every comparison.
async fn assert_compared<F>(
    db: &TestDatabase,
    column: Column<Thing, F>,
    values: [F; 3],
    set: impl Fn(&mut Thing, F),
) where
    F: Comparable + Clone + Debug,
{
    let things = values.iter().enumerate().map(|(n, value)| {
        let mut thing = thing(&n.to_string());
        set(&mut thing, value.clone());
        quiet(thing)
    });
    db.things().add_all(things).await.unwrap();
    let middle = || values[1].clone();
    for (condition, expected) in [
        (column.eq(middle()), "1"),
        (column.ne(middle()), "02"),
        (column.lt(middle()), "0"),
        (column.le(middle()), "01"),
        (column.gt(middle()), "2"),
        (column.ge(middle()), "12"),
        (column.is_in([values[2].clone(), values[0].clone()]), "02"),
        (!column.is_in([middle()]), "02"),
    ] {
        assert_eq!(labels(db, condition).await, expected, "{column:?} {values:?}");
    }
}

async fn integers_are_compared(db: &TestDatabase) {
    assert_compared(db, Thing::SMALL, [i32::MIN, 9, 10], |thing, n| thing.small = n).await;
    db.execute("DELETE FROM things").await;
    assert_compared(db, Thing::BIG, [i64::MIN, i64::MAX - 1, i64::MAX], |thing, n| thing.big = n)
        .await;
}

async fn decimals_are_compared_by_value(db: &TestDatabase) {
    let decimals = ["-1.5", "9", "10.5"].map(|text| text.parse::<Decimal>().unwrap());
    assert_compared(db, Thing::PRICE, decimals, |thing, price| thing.price = price).await;
    // Decimals that differ only in scale are equal.
    let nine = Decimal::new(900, 2);
    assert_eq!(labels(db, Thing::PRICE.eq(nine)).await, "1");
    assert_eq!(labels(db, Thing::PRICE.is_in([nine])).await, "1");
    assert_eq!(labels(db, Thing::PRICE.ne(nine)).await, "02");
}

async fn floats_are_compared(db: &TestDatabase) {
    let floats = [-1e300, 0.1 + 0.2, 1e300];
    assert_compared(db, Thing::RATIO, floats, |thing, ratio| thing.ratio = ratio).await;
    db.execute("DELETE FROM things").await;
    // SQLite reads this value from JSON as the adjacent float.
    let floats = [-5e-324, 6.376656484692976e-242, f64::MAX];
    assert_compared(db, Thing::RATIO, floats, |thing, ratio| thing.ratio = ratio).await;
}

async fn texts_are_compared(db: &TestDatabase) {
    let texts = ["", "a'%_\\", "b"].map(|text| Some(text.to_owned()));
    assert_compared(db, Thing::NOTE, texts, |thing, note| thing.note = note).await;
    assert_eq!(labels(db, Thing::LABEL.eq("2")).await, "2");
}

async fn booleans_are_compared(db: &TestDatabase) {
    let [no, yes] = [false, true].map(|active| Thing { active, ..thing(&active.to_string()) });
    db.things().add_all([quiet(no), quiet(yes)]).await.unwrap();
    for (condition, expected) in [
        (Thing::ACTIVE.eq(true), "true"),
        (Thing::ACTIVE.ne(true), "false"),
        (Thing::ACTIVE.is_in([false]), "false"),
        (Thing::ACTIVE.is_in([false, true]), "falsetrue"),
    ] {
        assert_eq!(labels(db, condition).await, expected);
    }
}

/// Another program has stored it, and conditions compare it as a number. PostgreSQL has a type for booleans.
async fn a_number_that_is_no_boolean_is_refused_by_column(db: &TestDatabase) {
    if db.dialect == Dialect::Postgres {
        return;
    }
    let stored = db.things().add(quiet(thing("a"))).await.unwrap();
    db.execute("UPDATE things SET active = 2").await;
    let error = db.things().get(stored.id).await.unwrap_err();
    assert_eq!(error.database_error().unwrap().kind(), DbErrorKind::Decode);
    let text = error.to_string();
    assert!(text.contains("`active`") && text.contains("holds 2"), "{text}");
    db.execute("UPDATE things SET active = 0").await;
    assert!(!db.things().get(stored.id).await.unwrap().active);
}

async fn bytes_are_compared(db: &TestDatabase) {
    let bytes = [vec![], vec![0, 255], vec![1]];
    assert_compared(db, Thing::RAW, bytes, |thing, raw| thing.raw = raw).await;
}

async fn dates_are_compared(db: &TestDatabase) {
    // MySQL supports dates from the year 1000 on.
    let first = if db.dialect.is_mysql() { "1000-01-01" } else { "0999-12-31" };
    let dates = [first, "1970-01-01", "9999-12-31"].map(|day| day.parse().unwrap());
    assert_compared(db, Thing::DAY, dates, |thing, day| thing.day = day).await;
    // It stores no earlier ones, and compares with them.
    for year in [0, 500] {
        let day = ekbatan::chrono::NaiveDate::from_ymd_opt(year, 1, 1).unwrap();
        assert_eq!(labels(db, Thing::DAY.gt(day)).await, "012", "{day}");
        assert_eq!(labels(db, Thing::DAY.is_in([day])).await, "", "{day}");
    }
}

async fn timestamps_are_compared(db: &TestDatabase) {
    let instants = [-1, 0, 1].map(|micros| DateTime::from_timestamp_micros(micros).unwrap());
    assert_compared(db, Thing::AT, instants, |thing, at| thing.at = at).await;
    db.execute("DELETE FROM things").await;
    assert_compared(db, Thing::SEEN_AT, instants.map(Some), |thing, at| thing.seen_at = at).await;
}

async fn uuids_and_ids_are_compared(db: &TestDatabase) {
    let uuids = [1, 2, u128::MAX].map(Uuid::from_u128);
    assert_compared(db, Thing::OWNER, uuids, |thing, owner| thing.owner = owner).await;
    db.execute("DELETE FROM things").await;
    assert_compared(db, Thing::ID, uuids.map(Id::from_uuid), |thing, id| thing.id = id).await;
}

async fn enums_and_newtypes_are_compared(db: &TestDatabase) {
    let [red, green] = [Color::Red, Color::Green].map(|color| Thing {
        cents: Cents(color.clone() as i64),
        color,
        ..thing("")
    });
    let [red, green] = [Thing { label: "r".into(), ..red }, Thing { label: "g".into(), ..green }];
    db.things().add_all([quiet(red), quiet(green)]).await.unwrap();
    for (condition, expected) in [
        (Thing::COLOR.eq(Color::Red), "r"),
        (Thing::COLOR.ne(Color::Red), "g"),
        (Thing::COLOR.is_in([Color::Red, Color::Green]), "gr"),
        (Thing::CENTS.lt(Cents(1)), "r"),
        (Thing::CENTS.is_in([Cents(1)]), "g"),
    ] {
        assert_eq!(labels(db, condition).await, expected);
    }
}

async fn nulls_are_neither_equal_nor_unequal_to_a_value(db: &TestDatabase) {
    let null = Thing { weight: None, ..thing("n") };
    let one = Thing { weight: Some(Decimal::ONE), ..thing("1") };
    db.things().add_all([quiet(null), quiet(one)]).await.unwrap();
    for (condition, expected) in [
        (Thing::WEIGHT.is_null(), "n"),
        (!Thing::WEIGHT.is_null(), "1"),
        (Thing::WEIGHT.eq(None), "n"),
        (Thing::WEIGHT.ne(None), "1"),
        (Thing::WEIGHT.eq(Decimal::ONE), "1"),
        (Thing::WEIGHT.ne(Decimal::ONE), ""),
        (Thing::WEIGHT.ne(Decimal::TWO), "1"),
        (!Thing::WEIGHT.lt(Decimal::ONE), "1"),
        (!Thing::WEIGHT.is_in([Decimal::TWO]), "1"),
        (Thing::WEIGHT.is_in([None]), "n"),
        (!Thing::WEIGHT.is_in([None]), "1"),
        (Thing::WEIGHT.is_in([None, Some(Decimal::ONE)]), "1n"),
        (!Thing::WEIGHT.is_in([None, Some(Decimal::ONE)]), ""),
        (!Thing::WEIGHT.is_in([None, Some(Decimal::TWO)]), "1"),
    ] {
        assert_eq!(labels(db, condition).await, expected);
    }
}

async fn conditions_are_combined(db: &TestDatabase) {
    let things = (0..4).map(|n| quiet(Thing { small: n, ..thing(&n.to_string()) }));
    db.things().add_all(things).await.unwrap();
    let is = |n: i32| Thing::SMALL.eq(n);
    for (condition, expected) in [
        (is(0) | is(1) & is(2), "0"),
        ((is(0) | is(1)) & !is(1), "0"),
        (!(is(0) | is(1)), "23"),
        (!!is(3), "3"),
        (Condition::all() & is(2), "2"),
        (Condition::all() | is(2), "0123"),
        (!Condition::all(), ""),
        (Thing::SMALL.ge(1) & Thing::SMALL.lt(3) & Thing::ACTIVE.eq(true), "12"),
    ] {
        assert_eq!(labels(db, condition).await, expected);
    }
}

async fn a_list_may_be_empty_or_long(db: &TestDatabase) {
    let things = (0..3).map(|n| quiet(Thing { small: n, ..thing(&n.to_string()) }));
    db.things().add_all(things).await.unwrap();
    let none: [i32; 0] = [];
    assert_eq!(labels(db, Thing::SMALL.is_in(none)).await, "");
    assert_eq!(labels(db, !Thing::SMALL.is_in(none)).await, "012");
    assert_eq!(labels(db, Thing::SMALL.is_in(1..70_000)).await, "12");
}

/// Elsewhere each list is one parameter, or becomes a part of the text.
async fn a_list_of_floats_has_a_bound_on_sqlite(db: &TestDatabase) {
    db.things().add(quiet(Thing { ratio: 32_766.0, ..thing("0") })).await.unwrap();
    let floats = |last: i32| Thing::RATIO.is_in((1..=last).map(f64::from));
    let answer = db.things().count_where(floats(32_766)).await;
    if db.dialect == Dialect::Sqlite {
        assert_eq!(
            answer.unwrap_err().to_string(),
            "invalid condition on Thing: column `ratio`: `is_in` has 32766 values, \
             and this database takes a list of 32765 of type float at most"
        );
        let two = db.things().count_where(floats(20_000) & floats(20_000)).await.unwrap_err();
        let expected = "the query has 40002 parameters, and SQLite takes 32766 at most; \
            each float of a list counts as one parameter";
        assert!(two.to_string().starts_with(expected), "{two}");
    } else {
        assert_eq!(answer.unwrap(), 1);
    }
}

async fn a_chain_of_terms_may_be_long(db: &TestDatabase) {
    let things = (0..3).map(|n| quiet(Thing { small: n, ..thing(&n.to_string()) }));
    db.things().add_all(things).await.unwrap();
    let chain = |terms: i32, join: fn(Condition<Thing>, Condition<Thing>) -> Condition<Thing>| {
        move |term: fn(i32) -> Condition<Thing>| (1..terms).map(term).reduce(join).unwrap()
    };
    let any = chain(5_000, |a, b| a | b)(|n| Thing::SMALL.eq(n));
    assert_eq!(labels(db, any.clone()).await, "12");
    let to_the_right = chain(5_000, |a, b| b | a)(|n| Thing::SMALL.eq(n));
    assert_eq!(db.things().count_where(to_the_right).await.unwrap(), 2);
    assert_eq!(labels(db, !any).await, "0");
    assert_eq!(labels(db, chain(5_000, |a, b| a & b)(|n| Thing::SMALL.ne(n))).await, "0");
    // More than a statement may have.
    let too_many = chain(70_001, |a, b| a | b)(|n| Thing::SMALL.eq(n));
    let error = db.things().find_where(too_many).await.unwrap_err();
    assert_eq!(error.database_error().map(|error| error.kind()), Some(DbErrorKind::TooLarge));
    let most = if db.dialect == Dialect::Sqlite { 32_766 } else { 65_535 };
    let expected = format!(
        "the query has 70000 parameters, and this database takes {most} at most; `is_in` sends a list as one parameter"
    );
    assert_eq!(error.to_string(), expected);
}

async fn conditions_that_are_nested_too_deeply_are_refused(db: &TestDatabase) {
    type Nest = fn(Condition<Thing>, i32) -> Condition<Thing>;
    db.things().add(quiet(Thing { small: 0, ..thing("0") })).await.unwrap();
    // Each of them adds one level, and leaves a condition of even depth true.
    let to_the_left: Nest = |inner, n| match n % 2 {
        0 => inner & Thing::SMALL.ge(1),
        _ => inner | Thing::SMALL.le(0),
    };
    let to_the_right: Nest = |inner, n| match n % 2 {
        0 => Thing::SMALL.ge(1) & inner,
        _ => Thing::SMALL.le(0) | inner,
    };
    let negated: Nest = |inner, n| match n % 2 {
        0 => inner & Thing::SMALL.ge(0),
        _ => !inner,
    };
    for nest in [to_the_left, to_the_right, negated] {
        let nested = |levels| (0..levels).fold(Thing::SMALL.eq(0), nest);
        assert_eq!(labels(db, nested(100)).await, "0");
        for levels in [101, 30_000] {
            let error = db.things().find_where(nested(levels).clone()).await.unwrap_err();
            assert_eq!(
                error.to_string(),
                "invalid condition on Thing: `&`, `|` and `!` are nested more than 100 levels deep; \
                 a chain of one operator is one level"
            );
        }
    }
}

async fn a_value_that_the_database_does_not_hold_is_refused(db: &TestDatabase) {
    let early = ekbatan::chrono::NaiveDate::from_ymd_opt(-4714, 1, 1).unwrap();
    let mut refused = vec![Thing::DAY.eq(early), Thing::DAY.is_in([early])];
    if db.dialect == Dialect::Postgres {
        refused.push(Thing::LABEL.eq("a\0"));
    }
    for condition in refused {
        let error = db.things().find_where(condition).await.unwrap_err();
        let kind = error.database_error().unwrap().kind();
        assert_eq!(kind, DbErrorKind::ValueOutOfRange, "{error}");
    }
}
