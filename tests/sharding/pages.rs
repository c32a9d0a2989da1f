//! Pages and streams over shards, compared with a sort in memory.

use std::cmp::Ordering;
use std::pin::pin;

use ekbatan::prelude::*;
use ekbatan::repository::{Condition, Direction, PageRequest};
use futures_util::TryStreamExt;
use support::stored_instant;

use crate::models::{Account, account, quiet};
use crate::shards::{FIRST, SECOND, SHARDS, THIRD, TestShards};

on_every_layout! {
    pages_over_shards_sort_all_rows,
    a_stream_over_shards_sorts_all_rows,
    a_stream_reads_beyond_the_first_page_of_each_shard,
    a_stream_names_the_shard_that_fails_at_a_later_page,
    pages_continue_after_the_last_row_while_tables_change,
    a_page_of_empty_shards_is_empty,
}

support::test_matrix! {
    #[tokio::test]
    |layout| &crate::shards::TestShards::start(layout).await;
    [mixed_only = crate::shards::Layout::Mixed]
    [pages_by_long_texts_are_ordered_by_their_first_bytes]
}

/// Texts that are equal in some collations, or that bytes and UTF-16 order differently.
const OWNERS: [&str; 20] = [
    "",
    "a",
    "A",
    "b",
    "B",
    "ab",
    "aB",
    "Ab",
    "ä",
    "Ä",
    "ß",
    "z",
    "Z",
    "é",
    "e\u{301}",
    "中",
    "\u{1F600}",
    "\u{FFFD}",
    "a b",
    "a-b",
];
/// PostgreSQL pads these texts with blanks, SQLite does not.
const CODES: [&str; 9] = ["", "a", "ab", "a!", "a\t", "B", "ä", "EUR", "EURXXXXX"];

fn seed() -> u64 {
    let given = std::env::var("EKBATAN_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("EKBATAN_TEST_SEED={seed}");
    seed
}

async fn fill(t: &TestShards, random: &mut fastrand::Rng, count: usize) -> Vec<Stored<Account>> {
    for shard in SHARDS {
        let mut rows = Vec::new();
        for _ in 0..random.usize(..count) {
            let mut row = account(shard, random.choice(OWNERS).unwrap());
            row.code = (*random.choice(&CODES).unwrap()).to_owned();
            row.memo = random.bool().then(|| (*random.choice(&CODES).unwrap()).to_owned());
            // Equal amounts may have different scales.
            let amount = random.i64(-3..=3);
            row.balance = match random.u8(..3) {
                0 => Decimal::new(amount, 0),
                1 => Decimal::new(amount * 100, 2),
                _ => Decimal::new(amount * 7_001, 3),
            };
            row.at = stored_instant(random.i64(-4_000_000_000..4_000_000_000));
            if random.bool() {
                row.at = stored_instant(random.i64(..) % 3);
            }
            row.rank = *random.choice([i64::MIN, -1, 0, 9, 10, i64::MAX].iter()).unwrap();
            rows.push(row);
        }
        random.shuffle(&mut rows);
        t.accounts().add_all(rows.into_iter().map(quiet)).await.unwrap();
    }
    t.accounts().find_all().await.unwrap()
}

type Compare = fn(&Account, &Account) -> Ordering;

/// An order: a column, and the comparison in memory.
struct By {
    name: &'static str,
    request: fn(PageRequest<Account>, Direction) -> PageRequest<Account>,
    compare: Compare,
}

const ORDERS: [By; 7] = [
    By {
        name: "owner",
        request: |page, way| page.order_by(Account::OWNER, way),
        compare: |a, b| a.owner.as_bytes().cmp(b.owner.as_bytes()),
    },
    By {
        name: "code",
        request: |page, way| page.order_by(Account::CODE, way),
        compare: |a, b| a.code.as_bytes().cmp(b.code.as_bytes()),
    },
    By {
        name: "memo",
        request: |page, way| page.order_by(Account::MEMO, way),
        compare: |a, b| a.memo.cmp(&b.memo),
    },
    By {
        name: "balance",
        request: |page, way| page.order_by(Account::BALANCE, way),
        compare: |a, b| a.balance.cmp(&b.balance),
    },
    By {
        name: "at",
        request: |page, way| page.order_by(Account::AT, way),
        compare: |a, b| a.at.cmp(&b.at),
    },
    By {
        name: "rank",
        request: |page, way| page.order_by(Account::RANK, way),
        compare: |a, b| a.rank.cmp(&b.rank),
    },
    By {
        name: "id",
        request: |page, way| page.order_by(Account::ID, way),
        compare: |a, b| a.id.cmp(&b.id),
    },
];

/// Reads all pages. Checks that every page except the last is full.
async fn pages(t: &TestShards, first: PageRequest<Account>, size: usize) -> Vec<Stored<Account>> {
    let mut rows = Vec::new();
    let mut next = Some(first);
    while let Some(request) = next {
        let page = t.accounts().page(request).await.unwrap();
        assert!(page.rows.len() == size || page.next.is_none(), "a page before the last is full");
        rows.extend(page.rows);
        next = page.next;
    }
    rows
}

async fn pages_over_shards_sort_all_rows(t: &TestShards) {
    let mut random = fastrand::Rng::with_seed(seed());
    let all = fill(t, &mut random, 16).await;
    for By { name, request, compare } in ORDERS {
        for direction in [Direction::Ascending, Direction::Descending] {
            let mut sorted = all.clone();
            sorted.sort_by(|a, b| compare(a, b).then(a.id.cmp(&b.id)));
            if direction == Direction::Descending {
                sorted.reverse();
            }
            for size in [1, 2, 7] {
                let found = pages(t, request(PageRequest::first(size), direction), size).await;
                let shown = |rows: &[Stored<Account>]| -> Vec<_> {
                    rows.iter().map(|row| (row.owner.clone(), row.code.clone(), row.id)).collect()
                };
                assert_eq!(
                    shown(&found),
                    shown(&sorted),
                    "by {name}, {direction:?}, {size} a page"
                );
                assert_eq!(found, sorted, "by {name}, {direction:?}, {size} a page");
            }
            // The same order with a filter.
            let few = || Account::RANK.gt(0) | Account::OWNER.eq("a");
            let filtered = request(PageRequest::first(2).filter(few()), direction);
            let mut expected = t.accounts().find_where(few()).await.unwrap();
            expected.sort_by_key(|row| sorted.iter().position(|other| other.id == row.id));
            assert_eq!(pages(t, filtered, 2).await, expected, "by {name}, filtered");
        }
    }
}

async fn a_stream_over_shards_sorts_all_rows(t: &TestShards) {
    let mut random = fastrand::Rng::with_seed(seed());
    for _ in 0..3 {
        let mut sorted = fill(t, &mut random, 20).await;
        sorted.sort_by_key(|row| row.id);
        let streamed: Vec<_> = t.accounts().stream(Condition::all()).try_collect().await.unwrap();
        assert_eq!(streamed, sorted);
        let high: Vec<_> = t.accounts().stream(Account::RANK.ge(9)).try_collect().await.unwrap();
        sorted.retain(|row| row.rank >= 9);
        assert_eq!(high, sorted);
    }
}

async fn a_stream_reads_beyond_the_first_page_of_each_shard(t: &TestShards) {
    for (shard, count) in [(FIRST, 1_100), (SECOND, 500), (THIRD, 3)] {
        let rows = (0..count).map(|n| quiet(account(shard, &format!("{n}"))));
        t.accounts().add_all(rows).await.unwrap();
    }
    let mut count = 0;
    let mut last = None;
    let mut rows = pin!(t.accounts().stream(Condition::all()));
    while let Some(row) = rows.try_next().await.unwrap() {
        assert!(last < Some(row.id), "every row once, in order");
        last = Some(row.id);
        count += 1;
    }
    assert_eq!(count, 1_603);
}

async fn a_stream_names_the_shard_that_fails_at_a_later_page(t: &TestShards) {
    t.three_accounts().await;
    let rows = (0..1_100).map(|n| quiet(account(SECOND, &format!("{n}"))));
    t.accounts().add_all(rows).await.unwrap();
    let mut rows = pin!(t.accounts().stream(Condition::all()));
    rows.try_next().await.unwrap().expect("the first pages were read");
    t.on(SECOND).hide("accounts").await;
    let error = loop {
        match rows.try_next().await {
            Ok(row) => assert!(row.is_some(), "the later pages were not read"),
            Err(error) => break error,
        }
    };
    match error {
        ReadError::Shards { failed, answered, .. } => {
            let shards: Vec<_> = failed.iter().map(|failure| failure.shard).collect();
            assert_eq!((&shards[..], &answered[..]), (&[SECOND][..], &[FIRST, THIRD][..]));
        }
        other => panic!("{other:?}"),
    }
}

async fn pages_continue_after_the_last_row_while_tables_change(t: &TestShards) {
    for (n, shard) in SHARDS.iter().cycle().take(12).enumerate() {
        let mut row = account(*shard, "x");
        row.rank = n as i64 * 10;
        t.accounts().add(quiet(row)).await.unwrap();
    }
    let first = PageRequest::first(5).order_by(Account::RANK, Direction::Ascending);
    let first = t.accounts().page(first).await.unwrap();
    let ranks = |rows: &[Stored<Account>]| rows.iter().map(|row| row.rank).collect::<Vec<_>>();
    assert_eq!(ranks(&first.rows), [0, 10, 20, 30, 40]);
    // On every shard, add a row before the end of the page and one after it; delete the last row.
    for shard in SHARDS {
        for rank in [35, 45] {
            let mut row = account(shard, "y");
            row.rank = rank;
            t.accounts().add(quiet(row)).await.unwrap();
        }
    }
    t.accounts().delete(first.rows[4].clone()).await.unwrap();
    let second = t.accounts().page(first.next.unwrap()).await.unwrap();
    assert_eq!(ranks(&second.rows), [45, 45, 45, 50, 60]);
}

async fn a_page_of_empty_shards_is_empty(t: &TestShards) {
    let page = t.accounts().page(PageRequest::first(3)).await.unwrap();
    assert!(page.rows.is_empty() && page.next.is_none());
    t.accounts().add(quiet(account(THIRD, "a"))).await.unwrap();
    let page = t.accounts().page(PageRequest::first(3)).await.unwrap();
    assert!(page.rows.len() == 1 && page.next.is_none());
}

/// MariaDB sorts texts with a long common beginning by their ids. All shards must follow.
async fn pages_by_long_texts_are_ordered_by_their_first_bytes(t: &TestShards) {
    let longer = "ALTER TABLE accounts MODIFY owner longtext NOT NULL";
    t.on(SECOND).execute(longer).await;
    let long = "ü".repeat(800);
    for shard in SHARDS {
        for owner in ["c", "b", "a"].map(|end| long.clone() + end) {
            t.accounts().add(quiet(account(shard, &owner))).await.unwrap();
        }
        t.accounts().add(quiet(account(shard, ""))).await.unwrap();
    }
    let mut sorted = t.accounts().find_all().await.unwrap();
    sorted.sort_by_key(|row| (!row.owner.is_empty(), row.id));
    for direction in [Direction::Ascending, Direction::Descending] {
        for size in [1, 5] {
            let first = PageRequest::first(size).order_by(Account::OWNER, direction);
            let found = pages(t, first, size).await;
            let ids = |rows: &[Stored<Account>]| rows.iter().map(|row| row.id).collect::<Vec<_>>();
            assert_eq!(ids(&found), ids(&sorted), "{direction:?}, {size} a page");
        }
        sorted.reverse();
    }
}
