//! How databases find the enqueued calls that are due.

use std::time::Duration;

use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::{Dialect, ScratchDatabase, until};

use crate::scene::{Mail, PostEntry, Scene, executor, migrations, node};
use crate::statements::{logging_server, statements};

on_every_database! { calls_that_are_due_are_read_in_the_order_of_the_index }

/// Inserts so many low calls that wait for a node.
async fn insert_low_calls(scratch: &ScratchDatabase, count: usize) {
    let date = match scratch.dialect {
        Dialect::Sqlite => "2026-01-31T12:00:00.000000Z",
        _ => "2026-01-31 12:00:00",
    };
    let row = |_| {
        let id = Uuid::now_v7();
        let of_call = format!("'{id}', '{}', '{id}', 1, 0, '{id}'", PostEntry::NAME);
        format!("({of_call}, -1, '{date}', 0, '{}', 'NEW', 1)", Uuid::nil())
    };
    let rows: Vec<String> = (0..count).map(row).collect();
    let insert = format!(
        "INSERT INTO {} (id, handler, stream, model_version, event_index, event_id, priority, due, \
         attempts, node, state, version) VALUES {}",
        scratch.eventlog("deliveries"),
        rows.join(", ")
    );
    scratch.execute(&insert).await;
}

/// How many looks into an index of a plan of PostgreSQL are by the priority.
fn finds_by_priority(plan: &str) -> usize {
    let looks = plan.lines().filter(|line| line.contains("Index Cond"));
    looks.filter(|line| line.contains("priority = ")).count()
}

/// A branch of the statement that looks for what is due.
async fn calls_that_are_due_are_read_in_the_order_of_the_index(scene: &Scene) {
    insert_low_calls(&scene.scratch, 5_000).await;
    let deliveries = scene.scratch.eventlog("deliveries");
    let mut connection = scene.scratch.connect().await;
    if scene.scratch.dialect != Dialect::Sqlite {
        let table = if scene.scratch.dialect == Dialect::Postgres { "" } else { "TABLE" };
        connection.execute(&format!("ANALYZE {table} {deliveries}")).await;
    }
    for priority in [1, 0, -1] {
        let plan = connection
            .plan(&format!(
                "SELECT id FROM {deliveries} WHERE state = 'NEW' AND handler = '{}' \
                 AND priority = {priority} ORDER BY due LIMIT 256",
                PostEntry::NAME
            ))
            .await;
        assert!(plan.contains("deliveries_due"), "{plan}");
        let reads_one_priority = match scene.scratch.dialect {
            Dialect::Sqlite => plan.contains("priority=?"),
            Dialect::Postgres => finds_by_priority(&plan) == 1,
            // By their names in the two formats that there are.
            Dialect::MySql | Dialect::MariaDb => {
                let key = ["\"used_key_parts\"", "\"key_columns\""].into_iter();
                let mut parts = key.filter_map(|key| plan.split_once(key)?.1.split_once(']'));
                parts.any(|(parts, _)| parts.contains("\"priority\""))
            }
        };
        assert!(reads_one_priority, "{plan}");
        let lower = plan.to_lowercase().replace("\"using_filesort\": false", "");
        let sorts = ["sort", "temp b-tree"].iter().any(|word| lower.contains(word));
        assert!(!sorts, "{plan}");
    }
    connection.close().await;
}

/// The statement as a node sends it, for a handler of events and an action.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_asks_for_each_priority_of_calls_and_reads_the_index() {
    let (server, scratch) = logging_server().await;
    let databases = Databases::connect(&scratch.config().into()).await.unwrap();
    databases.migrate(&migrations()).await.unwrap();
    let executor = executor(&databases).await;
    let mail = Mail::new(|_, _| async { Ok(()) }.boxed());
    let node = node(&executor).handler(mail).action(PostEntry).start().await.unwrap();
    let mut look = None;
    until("the node looks from the start of the index", async || {
        let log = server.log().await.unwrap();
        let all = statements(&log).into_values().flatten();
        let is_look =
            |text: &String| text.contains("UNION ALL SELECT id, 0") && !text.contains('$');
        look = all.filter(is_look).find(|text| text.contains("'NEW'") && !text.contains("due >="));
        look.is_some()
    })
    .await;
    let text = look.unwrap();
    let (_, look) = text.split_once("; ").unwrap();
    let count = |part: &str| look.matches(part).count();
    let counts = ["priority = 1", "priority = 0", "priority = -1"].map(count);
    assert_eq!(counts, [2, 4, 2], "of two states each, and normal ones of events: {look}");
    // It would claim the rows, which have no events.
    node.drain(Duration::from_secs(60)).await;
    insert_low_calls(&scratch, 5_000).await;
    let mut connection = scratch.connect().await;
    connection.execute(&format!("ANALYZE {}", scratch.eventlog("deliveries"))).await;
    let plan = connection.plan(look).await;
    let looks = (plan.matches("using deliveries_due").count(), finds_by_priority(&plan));
    assert_eq!(looks, (8, 8), "{plan}");
    assert!(!plan.contains("Sort") && !plan.contains("Seq Scan on deliveries"), "{plan}");
    connection.close().await;
}
