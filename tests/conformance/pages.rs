//! Keyset pages return every row once in any order, also when rows are equal in that order.

use ekbatan::domain::Comparable;
use ekbatan::prelude::*;
use ekbatan::repository::{Column, Direction, PageRequest};
use support::TestDatabase;
use support::things::{Thing, quiet, thing};

on_every_database! {
    pages_by_id_return_every_row_once,
    pages_by_decimal_return_every_row_once,
    pages_by_timestamp_return_every_row_once,
    pages_by_text_return_every_row_once,
    pages_by_a_nullable_column_return_every_row_once,
    pages_keep_their_filter,
    a_row_added_before_the_next_page_is_not_returned,
}

const ROWS: i64 = 23;

/// Adds things. Several differ only in their ids.
async fn add(db: &TestDatabase) {
    let things = (0..ROWS).map(|n| {
        quiet(Thing {
            price: Decimal::new((n % 7) * 45 - 90, 1),
            at: DateTime::from_timestamp_micros(n % 5).unwrap(),
            code: Some(["", "a", "aa", "b"][usize::try_from(n % 4).unwrap()].to_owned()),
            small: i32::try_from(n).unwrap(),
            note: (n % 3 > 0).then(|| "n".repeat(usize::try_from(n % 3).unwrap() - 1)),
            hits: (n % 2 > 0).then_some(n % 7 - 3),
            weight: (n % 5 > 0).then(|| Decimal::new((n % 5) * 45 - 90, 1)),
            seen_at: (n < 5).then(|| DateTime::from_timestamp_micros(n % 3).unwrap()),
            seen_on: None,
            ..thing(&n.to_string())
        })
    });
    db.things().add_all(things).await.unwrap();
}

async fn collect(db: &TestDatabase, first: PageRequest<Thing>, size: usize) -> Vec<Stored<Thing>> {
    let mut rows = Vec::new();
    let mut next = Some(first);
    while let Some(request) = next {
        let page = db.things().page(request).await.unwrap();
        assert!(page.rows.len() <= size);
        assert_eq!(page.next.is_some(), page.rows.len() == size);
        rows.extend(page.rows);
        next = page.next;
    }
    rows
}

/// Checks that pages of different sizes return every row once, in both directions.
async fn assert_pages<F: Comparable, K: Ord>(
    db: &TestDatabase,
    column: Column<Thing, F>,
    key: impl Fn(&Thing) -> K,
) {
    let mut expected = db.things().find_all().await.unwrap();
    expected.sort_by_key(|thing| (key(thing), thing.id));
    for direction in [Direction::Ascending, Direction::Descending] {
        for size in [1, 4, 23, 100, usize::MAX] {
            let first = PageRequest::first(size).order_by(column, direction);
            assert_eq!(collect(db, first, size).await, expected, "{column:?} {direction:?} {size}");
        }
        expected.reverse();
    }
}

async fn pages_by_id_return_every_row_once(db: &TestDatabase) {
    add(db).await;
    assert_pages(db, Thing::ID, |_| ()).await;
}

async fn pages_by_decimal_return_every_row_once(db: &TestDatabase) {
    add(db).await;
    assert_pages(db, Thing::PRICE, |thing| thing.price).await;
}

async fn pages_by_timestamp_return_every_row_once(db: &TestDatabase) {
    add(db).await;
    assert_pages(db, Thing::AT, |thing| thing.at).await;
}

async fn pages_by_text_return_every_row_once(db: &TestDatabase) {
    add(db).await;
    assert_pages(db, Thing::CODE, |thing| thing.code.clone()).await;
}

/// Null is less than every value, as `None` is.
async fn pages_by_a_nullable_column_return_every_row_once(db: &TestDatabase) {
    add(db).await;
    assert_pages(db, Thing::NOTE, |thing| thing.note.clone()).await;
    assert_pages(db, Thing::HITS, |thing| thing.hits).await;
    assert_pages(db, Thing::WEIGHT, |thing| thing.weight).await;
    assert_pages(db, Thing::SEEN_AT, |thing| thing.seen_at).await;
    assert_pages(db, Thing::SEEN_ON, |thing| thing.seen_on).await;
}

async fn pages_keep_their_filter(db: &TestDatabase) {
    add(db).await;
    let odd = (1..i32::try_from(ROWS).unwrap()).step_by(2);
    let first = PageRequest::first(3)
        .filter(Thing::SMALL.is_in(odd.clone()) | Thing::SMALL.eq(0))
        .order_by(Thing::SMALL, Direction::Descending);
    let small: Vec<i32> = collect(db, first, 3).await.iter().map(|thing| thing.small).collect();
    assert_eq!(small, odd.rev().chain([0]).collect::<Vec<_>>());
}

async fn a_row_added_before_the_next_page_is_not_returned(db: &TestDatabase) {
    add(db).await;
    let by_small = || PageRequest::first(10).order_by(Thing::SMALL, Direction::Ascending);
    let page = db.things().page(by_small()).await.unwrap();
    db.things().add(quiet(Thing { small: -1, ..thing("before") })).await.unwrap();
    let next = db.things().page(page.next.unwrap()).await.unwrap();
    let small: Vec<i32> = next.rows.iter().map(|thing| thing.small).collect();
    assert_eq!(small, (10..20).collect::<Vec<_>>());
}
