//! Commands that change several shards, one after another.

use ekbatan::prelude::*;
use serde_json::json;
use support::{Dialect, ScratchDatabase};

use crate::scene::Program;

/// A shard with two dead letters.
pub async fn shard() -> ScratchDatabase {
    let scratch = ScratchDatabase::create(Dialect::Sqlite).await;
    let databases = Databases::connect(&scratch.config().into()).await.unwrap();
    databases.migrate(&support::wallet::migrations()).await.unwrap();
    for _ in 0..2 {
        let (id, event) = (Uuid::now_v7(), Uuid::now_v7());
        let sql = format!(
            "INSERT INTO eventlog_dead_letters (id, handler, stream, model_version, event_index, event_id, \
             attempts, error, died, state, version) VALUES ('{id}', 'mail.send', '{event}', 1, 0, '{event}', \
             1, 'broken', '2020-01-01T00:00:00.000000Z', 'DEAD', 1)"
        );
        scratch.execute(&sql).await;
    }
    scratch
}

/// Three shards, and the program over them. The second shard refuses what operators do.
async fn three_shards() -> ([ScratchDatabase; 3], Program) {
    let shards = [shard().await, shard().await, shard().await];
    let failing = "CREATE TRIGGER failing BEFORE INSERT ON eventlog_interventions \
        BEGIN SELECT RAISE(ABORT, 'the table is not to be changed'); END";
    shards[1].execute(failing).await;
    let members = shards.iter().enumerate().map(|(of, shard)| {
        format!("{{member: {of}, configs: {{primary-config: {{url: '{}'}}}}}}", shard.url)
    });
    let members = members.collect::<Vec<_>>().join(", ");
    let program = Program::of(&format!(
        "ekbatan: {{sharding: {{default-shard: {{group: 0, member: 0}}, groups: [{{group: 0, name: all, members: [{members}]}}]}}}}"
    ));
    (shards, program)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_that_stops_at_a_shard_says_what_was_done_on_those_before() {
    let (shards, program) = three_shards().await;
    let by = ["--who", "alice", "--why", "they are old"];
    let purge = ["events", "purge", "--handler", "mail.send"];

    let said = program.run(&[&purge[..], &["--yes", "6"], &by].concat()).await.failed(1);
    assert!(said.starts_with("ekbatan: shard 0/0: 2 purged; stopped at shard 0/1: "), "{said}");
    assert!(said.contains("the table is not to be changed"), "{said}");
    let rest = "so look before you go on with it; shard 0/2: not begun. Go on with --shard 0/2\n";
    assert!(said.ends_with(rest), "{said}");

    // What is left is counted anew, and programs get the same.
    let said = program.run(&[&purge[..], &["--yes", "4", "--json"], &by].concat()).await.failed(1);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let shards_of = said["shards"].as_array().unwrap();
    assert_eq!(shards_of[0], json!({ "shard": "0/0", "purged": 0 }));
    assert!(shards_of[1]["error"].as_str().unwrap().contains("not to be changed"), "{said}");
    assert_eq!(shards_of[2], json!({ "shard": "0/2", "purged": 0 }));

    shards[1].execute("DROP TRIGGER failing").await;
    for shard in ["0/1", "0/2"] {
        let rest = [&purge[..], &["--yes", "2", "--shard", shard], &by].concat();
        assert_eq!(program.json(&rest).await["purged"], 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stops_at_a_shard_with_a_handler_says_where_it_is_done() {
    let (shards, program) = three_shards().await;
    for shard in &shards {
        let subscribed = format!(
            "INSERT INTO eventlog_subscriptions (id, handler, event_type, since, state, version) \
             VALUES ('{}', 'mail.send', 'WalletOpened', 1, 'ACTIVE', 1)",
            Uuid::now_v7()
        );
        shard.execute(&subscribed).await;
    }
    let by = ["--who", "alice", "--why", "an audit"];
    for (verb, yes, did) in [
        ("pause", &[][..], "paused"),
        ("resume", &[], "resumed"),
        ("retire", &["--yes", "0"], "moved"),
    ] {
        let command = [&["events", verb, "mail.send"], yes, &by].concat();
        let done = u64::from(did != "moved");
        let said = program.run(&command).await.failed(1);
        let begin = format!("ekbatan: shard 0/0: {done} {did}; stopped at shard 0/1: ");
        assert!(said.starts_with(&begin) && said.contains("not to be changed"), "{said}");
        let rest = "; shard 0/2: not begun. Go on with --shard 0/1, then --shard 0/2\n";
        assert!(said.ends_with(rest), "{said}");
        let said = program.run(&[&command[..], &["--json"]].concat()).await.failed(1);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(said["shards"][0], json!({ "shard": "0/0", did: done }));
        assert_eq!(said["shards"][2], json!({ "shard": "0/2", did: 0 }));
    }
    shards[1].execute("DROP TRIGGER failing").await;
    let rest = [&["events", "retire", "mail.send", "--yes", "0"][..], &by].concat();
    program.run(&rest).await.done();
    let status = program.json(&["events", "status"]).await;
    let states: Vec<_> = status.as_array().unwrap().iter().map(|row| &row["state"]).collect();
    assert_eq!(states, ["retired"; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_shard_has_is_missed_on_all_of_them() {
    let (_shards, program) = three_shards().await;
    let (id, by) = (Uuid::now_v7().to_string(), ["--who", "alice", "--why", "try it again"]);
    for (verb, what, list) in [
        ("retry", "delivery", "parked"),
        ("skip", "delivery", "parked"),
        ("did-not-happen", "remote call", "in-doubt"),
    ] {
        let said = program.run(&[&["events", verb, &id], &by[..]].concat()).await.failed(1);
        let none = format!("ekbatan: there is no {what} {id} on shard 0/0, 0/1, 0/2 that is ");
        assert!(said.starts_with(&none), "{said}");
        assert!(said.contains(&format!("`ekbatan events {list}` lists ")), "{said}");
    }
}

/// The address of a shard that is down.
const DOWN: &str = "sqlite:no/such/folder/a.db";

/// The program over two shards. The first is the default.
fn two_shards(urls: [&str; 2]) -> Program {
    let [one, other] = urls;
    let members = format!(
        "{{member: 0, configs: {{primary-config: {{url: '{one}'}}}}}}, {{member: 1, configs: {{primary-config: {{url: '{other}'}}}}}}"
    );
    Program::of(&format!(
        "ekbatan: {{sharding: {{default-shard: {{group: 0, member: 0}}, groups: [{{group: 0, name: all, members: [{members}]}}]}}}}"
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_answer_while_a_shard_without_them_is_down() {
    let up = shard().await;
    let program = two_shards([&up.url, DOWN]);
    assert_eq!(program.run(&["jobs", "list"]).await.done(), "no job is known\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_shard_answers_while_another_is_down() {
    let up = shard().await;
    let program = two_shards([DOWN, &up.url]);
    let letters = ["events", "dead-letters"];
    let down = program.run(&letters).await.failed(1);
    assert!(down.contains("no/such/folder/a.db"), "{down}");
    assert!(down.ends_with("--shard GROUP/MEMBER works on a shard that answers\n"), "{down}");
    let letters = program.json(&[&letters[..], &["--shard", "0/1"]].concat()).await;
    assert_eq!(letters.as_array().unwrap().len(), 2);
    // A dead letter is left of a handler that is gone.
    let purge = ["events", "purge", "--shard", "0/1", "--handler"];
    let none = program.json(&[&purge[..], &["mail.send", "--settled"]].concat()).await;
    assert_eq!(none["count"], 0);
    let unknown = program.run(&[&purge[..], &["mail.sent"]].concat()).await.failed(1);
    assert!(unknown.ends_with("no handler `mail.sent` on shard 0/1; there are `mail.send`\n"));
    let status = program.run(&["events", "status", "--shard", "0/1"]).await.done();
    assert_eq!(status, "no handler has anything left; retired ones are not shown\n");
}
