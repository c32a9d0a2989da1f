//! Pages over shards in the order of long bytes. MariaDB sorts by their beginning only.

use ekbatan::db::Dialect;
use ekbatan::prelude::*;
use ekbatan::repository::{Direction, PageRequest};
use serde::{Deserialize, Serialize};

use crate::models::{Life, quiet};
use crate::shards::{SECOND, SHARDS, TestShards};

support::test_matrix! {
    #[tokio::test]
    |layout| &crate::shards::TestShards::start_empty(layout).await;
    [mixed_only = crate::shards::Layout::Mixed]
    [pages_by_long_bytes_are_ordered_by_the_first_of_them]
}

/// MariaDB holds no longer tag than what all databases sort by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Entity)]
#[entity(table = "seals", name = "Seal")]
struct Seal {
    id: ShardedId<Seal>,
    print: Vec<u8>,
    tag: Vec<u8>,
    state: Life,
}

const SQLITE: &str = "CREATE TABLE seals (id TEXT PRIMARY KEY, print BLOB NOT NULL, tag BLOB NOT NULL, \
    state TEXT NOT NULL, version INTEGER NOT NULL)";
const POSTGRES: &str = "CREATE TABLE seals (id uuid PRIMARY KEY, print bytea NOT NULL, tag bytea NOT NULL, \
    state varchar(24) NOT NULL, version bigint NOT NULL)";
const MARIADB: &str = "CREATE TABLE seals (id uuid PRIMARY KEY, print longblob NOT NULL, \
    tag varbinary(1000) NOT NULL, state varchar(24) NOT NULL, version bigint NOT NULL)";

/// So many bytes decide.
const FIRST_BYTES: usize = 1_000;

/// An order, and the value by which it sorts.
type Order = (fn(PageRequest<Seal>, Direction) -> PageRequest<Seal>, fn(&Seal) -> &[u8]);

const ORDERS: [Order; 2] = [
    (|page, way| page.order_by(Seal::PRINT, way), |seal| &seal.print),
    (|page, way| page.order_by(Seal::TAG, way), |seal| &seal.tag),
];

async fn pages_by_long_bytes_are_ordered_by_the_first_of_them(t: &TestShards) {
    let migrations = Migrations::none()
        .script_for(Dialect::Sqlite, 1, "seals", SQLITE)
        .script_for(Dialect::Postgres, 1, "seals", POSTGRES)
        .script_for(Dialect::MariaDb, 1, "seals", MARIADB);
    t.databases.migrate(&migrations).await.unwrap();
    let seals = t.databases.repository::<Seal>();
    for shard in SHARDS {
        let long =
            ["c", "b", "", "a"].map(|end| [&[0xFF; FIRST_BYTES][..], end.as_bytes()].concat());
        for print in long.into_iter().chain([vec![], vec![0], vec![0xFF, 0]]) {
            let mut tag = print.clone();
            if shard == SECOND {
                tag.truncate(FIRST_BYTES);
            }
            let seal = Seal { id: ShardedId::new(shard), print, tag, state: Life::Active };
            seals.add(quiet(seal)).await.unwrap();
        }
    }
    let mut sorted = seals.find_all().await.unwrap();
    for (order, value) in ORDERS {
        let first = |seal: &Seal| value(seal).iter().take(FIRST_BYTES).copied().collect::<Vec<_>>();
        sorted.sort_by_key(|seal| (first(seal), seal.id));
        for direction in [Direction::Ascending, Direction::Descending] {
            for size in [1, 4] {
                let mut found = Vec::new();
                let mut next = Some(order(PageRequest::first(size), direction));
                while let Some(request) = next {
                    let page = seals.page(request).await.unwrap();
                    found.extend(page.rows.into_iter().map(|seal| seal.id));
                    next = page.next;
                }
                let mut expected: Vec<_> = sorted.iter().map(|seal| seal.id).collect();
                if direction == Direction::Descending {
                    expected.reverse();
                }
                assert_eq!(found, expected, "{direction:?}, {size} a page");
            }
        }
    }
}
