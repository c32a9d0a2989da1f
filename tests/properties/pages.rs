//! Pages by any column return every row once.

use std::collections::BTreeSet;

use ekbatan::domain::{Comparable, New};
use ekbatan::prelude::*;
use ekbatan::repository::{Column, Direction, PageRequest};
use support::TestDatabase;

use crate::conditions::add;
use crate::draw::Draw;
use crate::sample::{Sample, samples, tame};

on_every_database! {
    pages_by_any_column_return_every_row_once,
    pages_by_texts_with_long_common_prefixes_return_every_row_once,
}

async fn assert_pages<F: Comparable>(
    db: &TestDatabase,
    column: Column<Sample, F>,
    sizes: &[usize],
    expected: &BTreeSet<Uuid>,
) {
    for direction in [Direction::Ascending, Direction::Descending] {
        for size in sizes {
            let mut seen = BTreeSet::new();
            let mut next = Some(PageRequest::first(*size).order_by(column, direction));
            while let Some(request) = next {
                let page = samples(db).page(request).await.unwrap();
                for row in &page.rows {
                    assert!(
                        seen.insert(row.id.uuid()),
                        "twice by {column:?}, {direction:?}, {size}"
                    );
                }
                next = page.next;
            }
            assert_eq!(seen.len(), expected.len(), "by {column:?}, {direction:?}, {size}");
            assert_eq!(seen, *expected);
        }
    }
}

async fn pages_by_any_column_return_every_row_once(db: &TestDatabase, mut draw: Draw) {
    let rows = add(db, &mut draw, 120).await;
    let ids: BTreeSet<Uuid> = rows.iter().map(|row| row.id.uuid()).collect();
    macro_rules! pages {
        ($($column:ident),* $(,)?) => {$(
            assert_pages(db, Sample::$column, &[7, 50], &ids).await;
        )*};
    }
    pages!(ID, FLAG, TINY, SMALL, BIG, RATIO, LABEL, RAW, OWNER, PRICE, DAY, AT, COLOR);
    pages!(
        OPT_FLAG, OPT_TINY, OPT_SMALL, OPT_BIG, OPT_RATIO, OPT_LABEL, OPT_RAW, OPT_OWNER,
        OPT_PRICE, OPT_DAY, OPT_AT, OPT_COLOR,
    );
}

/// Servers that sort by a prefix of the text treat these texts as equal.
async fn pages_by_texts_with_long_common_prefixes_return_every_row_once(
    db: &TestDatabase,
    mut draw: Draw,
) {
    let rows: Vec<Sample> = (0..40)
        .map(|_| {
            let end = draw.one("[a-c]{2}");
            let raw = [vec![b'x'; 1_500], end.clone().into_bytes()].concat();
            Sample { id: Id::new(), label: "x".repeat(1_500) + &end, raw, ..tame() }
        })
        .collect();
    let ids = rows.iter().map(|row| row.id.uuid()).collect();
    samples(db).add_all(rows.into_iter().map(|row| New::new(row, ()))).await.unwrap();
    assert_pages(db, Sample::LABEL, &[3, 7], &ids).await;
    assert_pages(db, Sample::RAW, &[3, 7], &ids).await;
}
