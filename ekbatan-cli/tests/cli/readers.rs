//! The program with a login that may only read. SQLite has no logins.

use crate::scene::Scene;

on_every_database! { only postgres and mysql and mariadb: reading_needs_no_right_to_write }

async fn reading_needs_no_right_to_write(scene: &Scene) {
    let node = scene.node_that_parks().await;
    scene.wallet_with_parked_event().await;
    let reader = scene.reader().await;
    let status = reader.json(&["events", "status"]).await;
    assert_eq!(status[0]["parked"], 1);
    let parked = reader.json(&["events", "parked"]).await;
    let id = parked[0]["id"].as_str().unwrap();
    assert_eq!(reader.json(&["events", "look", id]).await["event_type"], "WalletOpened");
    for list in ["failing", "dead-letters", "in-doubt", "log"] {
        assert_eq!(reader.json(&["events", list]).await, serde_json::json!([]));
    }
    let count = ["events", "replay", "--handler", "ledger.post", "--stored"];
    assert_eq!(reader.json(&count).await["count"], 0);
    let by = ["--who", "alice", "--why", "try it"];
    for command in ["retry", "skip"] {
        reader.run(&[&["events", command, id], &by[..]].concat()).await.failed(1);
    }
    reader.run(&[&["events", "pause", "ledger.post"], &by[..]].concat()).await.failed(1);
    assert_eq!(scene.json(&["events", "parked"]).await[0]["id"], id);
    assert_eq!(scene.json(&["events", "log"]).await, serde_json::json!([]));
    node.drain(std::time::Duration::from_secs(60)).await;
}
