//! Pages over shards after values that only one of the databases holds.

use std::cmp::Ordering;

use ekbatan::chrono::NaiveDate;
use ekbatan::db::Dialect;
use ekbatan::domain::ShardIdentifier;
use ekbatan::prelude::*;
use ekbatan::repository::{Direction, PageRequest};
use serde::{Deserialize, Serialize};

use crate::models::{Life, quiet};
use crate::shards::{FIRST, SECOND, SHARDS, THIRD, TestShards};

support::test_matrix! {
    #[tokio::test]
    |layout| &crate::shards::TestShards::start_empty(layout).await;
    [mixed_only = crate::shards::Layout::Mixed]
    [pages_continue_after_values_that_other_databases_do_not_hold]
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Entity)]
#[entity(table = "readings", name = "Reading")]
struct Reading {
    id: ShardedId<Reading>,
    ratio: Option<f64>,
    day: NaiveDate,
    at: DateTime<Utc>,
    note: String,
    state: Life,
}

const SQLITE: &str = "CREATE TABLE readings (id TEXT PRIMARY KEY, ratio REAL, day TEXT NOT NULL, \
    at TEXT NOT NULL, note TEXT NOT NULL, state TEXT NOT NULL, version INTEGER NOT NULL)";
const POSTGRES: &str = "CREATE TABLE readings (id uuid PRIMARY KEY, ratio double precision, day date NOT NULL, \
    at timestamptz NOT NULL, note text NOT NULL, state varchar(24) NOT NULL, version bigint NOT NULL)";
const MARIADB: &str = "CREATE TABLE readings (id uuid PRIMARY KEY, ratio double, day date NOT NULL, \
    at datetime(6) NOT NULL, note longtext NOT NULL, state varchar(24) NOT NULL, version bigint NOT NULL)";

/// So many bytes of a text decide.
const FIRST_BYTES: usize = 1_000;

/// The first and the last year of a shard, and a year between.
fn years(shard: ShardIdentifier) -> [i32; 3] {
    match shard {
        FIRST => [-4_000, 2_000, 20_000],
        SECOND => [1_000, 2_000, 9_999],
        _ => [0, 2_000, 9_999],
    }
}

fn ratios(shard: ShardIdentifier) -> Vec<Option<f64>> {
    let all = [None, Some(0.5), Some(f64::MAX), Some(f64::MIN)];
    let infinite = [f64::INFINITY, f64::NEG_INFINITY].map(Some);
    match shard {
        FIRST => [&all[..], &infinite, &[Some(f64::NAN)]].concat(),
        SECOND => all.to_vec(),
        _ => [&all[..], &infinite].concat(),
    }
}

fn notes(shard: ShardIdentifier) -> Vec<String> {
    let long = "x".repeat(FIRST_BYTES);
    let all = ["", "a", "a\u{1}", "ab", &long];
    let with_nul = ["\0", "a\0", "a\0b", &format!("{long}\0")];
    match shard {
        FIRST => all.map(str::to_owned).to_vec(),
        _ => [&all[..], &with_nul].concat().iter().map(|note| note.to_string()).collect(),
    }
}

fn readings(shard: ShardIdentifier) -> Vec<Reading> {
    let (years, ratios) = (years(shard), ratios(shard));
    let reading = |(n, note): (usize, String)| {
        let day = NaiveDate::from_ymd_opt(years[n % years.len()], 6, 1).unwrap();
        Reading {
            id: ShardedId::new(shard),
            ratio: ratios[n % ratios.len()],
            day,
            at: day.and_hms_opt(1, 2, 3).unwrap().and_utc(),
            note,
            state: Life::Active,
        }
    };
    // Each ratio is among them, too.
    notes(shard).into_iter().cycle().take(9).enumerate().map(reading).collect()
}

/// An order, and the same order in memory.
struct By {
    name: &'static str,
    request: fn(PageRequest<Reading>, Direction) -> PageRequest<Reading>,
    compare: fn(&Reading, &Reading) -> Ordering,
}

/// As PostgreSQL does, null first.
fn compare_ratios(a: &Reading, b: &Reading) -> Ordering {
    let by_nan = |a: f64, b: f64| a.is_nan().cmp(&b.is_nan());
    match (a.ratio, b.ratio) {
        (Some(a), Some(b)) => a.partial_cmp(&b).unwrap_or_else(|| by_nan(a, b)),
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}

fn first_bytes(reading: &Reading) -> &[u8] {
    let note = reading.note.as_bytes();
    &note[..note.len().min(FIRST_BYTES)]
}

const ORDERS: [By; 4] = [
    By {
        name: "ratio",
        request: |page, way| page.order_by(Reading::RATIO, way),
        compare: compare_ratios,
    },
    By {
        name: "day",
        request: |page, way| page.order_by(Reading::DAY, way),
        compare: |a, b| a.day.cmp(&b.day),
    },
    By {
        name: "at",
        request: |page, way| page.order_by(Reading::AT, way),
        compare: |a, b| a.at.cmp(&b.at),
    },
    By {
        name: "note",
        request: |page, way| page.order_by(Reading::NOTE, way),
        compare: |a, b| first_bytes(a).cmp(first_bytes(b)),
    },
];

/// Each row is the last one of a page once, so each value is that after which the next page begins.
async fn pages_continue_after_values_that_other_databases_do_not_hold(t: &TestShards) {
    let migrations = Migrations::none()
        .script_for(Dialect::Sqlite, 1, "readings", SQLITE)
        .script_for(Dialect::Postgres, 1, "readings", POSTGRES)
        .script_for(Dialect::MariaDb, 1, "readings", MARIADB);
    t.databases.migrate(&migrations).await.unwrap();
    let readings_on_all = t.databases.repository::<Reading>();
    for shard in SHARDS {
        readings_on_all.add_all(readings(shard).into_iter().map(quiet)).await.unwrap();
    }
    // A value that MariaDB holds although nothing may write it there.
    t.on(SECOND).execute("UPDATE readings SET day = '0500-06-01' WHERE day = '1000-06-01'").await;
    assert_eq!(t.on(THIRD).count("readings").await, 9);
    let mut sorted = readings_on_all.find_all().await.unwrap();
    for By { name, request, compare } in ORDERS {
        sorted.sort_by(|a, b| compare(a, b).then(a.id.cmp(&b.id)));
        for direction in [Direction::Ascending, Direction::Descending] {
            let mut found = Vec::new();
            let mut next = Some(request(PageRequest::first(1), direction));
            while let Some(request) = next {
                let page = readings_on_all.page(request).await.unwrap();
                found.extend(page.rows.into_iter().map(|row| row.id));
                next = page.next;
            }
            let mut expected: Vec<_> = sorted.iter().map(|row| row.id).collect();
            if direction == Direction::Descending {
                expected.reverse();
            }
            assert_eq!(found, expected, "by {name}, {direction:?}");
        }
    }
}
