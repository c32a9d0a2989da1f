//! What the sessions of lanes keep at the server: prepared statements and their plans. Triggers
//! look, because they run in the session of the lane.

use ekbatan::domain::{Entity, New};
use ekbatan::prelude::*;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use support::{Dialect, ScratchDatabase};

use crate::orders::{Order, OrderState, Orders};

// One thread, so that all commits of a round are queued before the lane takes them.
support::on_every_database! {
    #[tokio::test]
    |dialect| dialect;
    only postgres: many_tables_need_few_prepared_statements, a_table_that_grew_is_not_scanned
}

macro_rules! kinds {
    ($($kind:ident of $table:tt),+ $(,)?) => {
        $(
            #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Entity)]
            #[entity(table = $table, name = $table)]
            pub struct $kind {
                pub id: Id<$kind>,
                pub total: i64,
                pub state: OrderState,
            }
        )+

        const TABLES: &[&str] = &[$($table),+];

        /// Adds a row to each table whose position is in `of`, all at the same time.
        async fn add_to(databases: &Databases, of: &[usize]) {
            let mut position = 0;
            let mut adding: Vec<futures_util::future::BoxFuture<'_, ()>> = Vec::new();
            $(
                if of.contains(&position) {
                    let row = $kind { id: Id::new(), total: 0, state: OrderState::Open };
                    adding.push(Box::pin(add(databases, row)));
                }
                position += 1;
            )+
            assert_eq!(position, TABLES.len());
            join_all(adding).await;
        }
    };
}

kinds! {
    Kind0 of "kind0", Kind1 of "kind1", Kind2 of "kind2", Kind3 of "kind3", Kind4 of "kind4",
    Kind5 of "kind5", Kind6 of "kind6", Kind7 of "kind7", Kind8 of "kind8", Kind9 of "kind9",
}

async fn add<T: Entity>(databases: &Databases, row: T) {
    databases.repository::<T>().add(New::new(row, ())).await.unwrap();
}

async fn many_tables_need_few_prepared_statements(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    let mut sql = String::new();
    for table in TABLES {
        sql.push_str(&format!(
            "CREATE TABLE {table} (id uuid PRIMARY KEY, total bigint NOT NULL, \
             state varchar(24) NOT NULL, version bigint NOT NULL); "
        ));
    }
    sql.push_str(
        "CREATE FUNCTION count_statements() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN NEW.total := (SELECT count(*) FROM pg_prepared_statements); RETURN NEW; END $$; \
         CREATE TRIGGER statements BEFORE INSERT ON kind0 \
         FOR EACH ROW EXECUTE FUNCTION count_statements()",
    );
    let databases = Databases::connect(&scratch.config().lanes(1).into()).await.unwrap();
    databases.migrate(&Migrations::none().script(1, "create_kinds", sql)).await.unwrap();
    let all: Vec<usize> = (0..TABLES.len()).collect();
    for table in &all {
        add_to(&databases, &[*table]).await;
    }
    // Every pair and every triple: 165 combinations.
    for first in &all {
        for second in &all[..*first] {
            add_to(&databases, &[*first, *second]).await;
            for third in &all[..*second] {
                add_to(&databases, &[*first, *second, *third]).await;
            }
        }
    }
    let most = scratch.select(&["max(total)"], "FROM kind0").await;
    let most: usize = most[0][0].as_deref().unwrap().parse().unwrap();
    assert!(most <= 2 * TABLES.len() + 2, "{most} prepared statements");
}

/// The statement is planned while the table has one page; a scan is the cheapest plan then.
async fn a_table_that_grew_is_not_scanned(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    let orders = Orders::with_config(scratch.config().lanes(1)).await;
    scratch
        .execute(
            "ALTER TABLE orders ADD COLUMN scans bigint; \
             CREATE FUNCTION count_scans() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN NEW.scans := (SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relid = TG_RELID); \
             RETURN NEW; END $$; \
             CREATE TRIGGER scans BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION count_scans()",
        )
        .await;
    let pair: Vec<Id<Order>> = orders.add(2).await.iter().map(|order| order.id).collect();
    scratch.execute("VACUUM ANALYZE orders").await;
    orders.change(&pair, &[]).await.unwrap();
    scratch
        .execute(
            "INSERT INTO orders SELECT gen_random_uuid(), 0, 'OPEN', 1 FROM generate_series(1, 100000)",
        )
        .await;
    for _ in 0..3 {
        orders.change(&pair, &[]).await.unwrap();
    }
    let scans = scratch.select(&["max(scans)"], "FROM orders").await;
    assert_eq!(scans, [[Some("0".to_owned())]]);
}
