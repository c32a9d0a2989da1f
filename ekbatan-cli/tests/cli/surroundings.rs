//! The program in a shell: files and databases that are not there, and pipes that nobody reads.

use std::process::{Command, Stdio};

use crate::scene::{self, Program, Scene};
use crate::shards::shard;

#[tokio::test]
async fn a_file_that_does_not_exist_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    for url in ["sqlite:typo.db", "sqlite:typo.db?mode=rwc", "sqlite:typo.db?mode=rw"] {
        let said = scene::run(&["--database", url, "events", "status"], folder.path()).await;
        let said = said.failed(1);
        assert!(said.contains("sqlite:typo.db cannot be opened"), "{said}");
        assert!(said.contains("does the file exist"), "{said}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{url}");
    }
}

#[tokio::test]
async fn a_wrong_address_is_named_by_its_option() {
    let folder = tempfile::tempdir().unwrap();
    let said = scene::run(&["--database", "http://x", "events", "status"], folder.path()).await;
    let said = said.failed(2);
    assert!(said.starts_with("ekbatan: --database: the address \"http://x\" is not"), "{said}");
    assert!(!said.contains("primary-config"), "{said}");
    let said = scene::run(&["--database", "sqlite::memory:", "events", "status"], folder.path());
    let said = said.await.failed(1);
    assert!(!said.contains("mode=rw"), "{said}");
    // Without the tables of the framework.
    let empty = folder.path().join("empty.db");
    std::fs::write(&empty, "").unwrap();
    let empty = format!("sqlite:{}", empty.display());
    for command in [["events", "status"], ["jobs", "list"]] {
        let asked = [&["--database", &empty][..], &command].concat();
        let said = scene::run(&asked, folder.path()).await.failed(1);
        assert!(said.contains("there is no table `eventlog_"), "{said}");
        assert!(said.contains("; run its migration"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_has_enough_is_no_failure() {
    let database = shard().await;
    for form in [&[][..], &["--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut program = Command::new(env!("CARGO_BIN_EXE_ekbatan"));
        program.args(["--database", &database.url, "events", "dead-letters"]).args(form);
        program.stdin(Stdio::null()).stdout(writer);
        let ran = tokio::task::spawn_blocking(move || program.output()).await.unwrap().unwrap();
        let said = String::from_utf8(ran.stderr).unwrap();
        assert_eq!((ran.status.code(), &*said), (Some(0), ""), "{form:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_gets_no_control_characters_of_a_stored_text() {
    let database = shard().await;
    let named =
        "UPDATE eventlog_dead_letters SET error = 'a' || char(27) || '[2J' || char(10) || 'b'";
    database.execute(named).await;
    let program = Program::of(&format!(
        "ekbatan: {{configs: {{primary-config: {{url: '{}'}}}}}}",
        database.url
    ));
    let letters = program.json(&["events", "dead-letters"]).await;
    assert_eq!(letters[0]["error"], "a\u{1b}[2J\nb");
    let id = letters[0]["id"].as_str().unwrap();
    assert_eq!(program.json(&["events", "look", id]).await["error"], "a\u{1b}[2J\nb");
    let look = program.run(&["events", "look", id]).await.done();
    assert!(look.contains("  a [2J\nb\n"), "{look:?}");
    let table = program.run(&["events", "dead-letters"]).await.done();
    assert!(table.contains("  a [2J b\n"), "{table:?}");
    database
        .execute("UPDATE eventlog_dead_letters SET handler = 'mail' || char(27) || '[2J'")
        .await;
    let unknown = program.run(&["events", "retire", "mail"]).await.failed(1);
    assert!(unknown.contains("there are `mail [2J`"), "{unknown:?}");
}

#[tokio::test]
async fn options_are_looked_at_together_wherever_they_stand() {
    let folder = tempfile::tempdir().unwrap();
    let status = ["events", "status"];
    let config = ["--config", "wallet.yml"];
    let [database, eventlog] = [["--database", "sqlite:wallet.db"], ["--eventlog", "wallet_log"]];
    let twice = "--config wallet.yml and --database are both given; leave out one of them";
    let on_sqlite = "--eventlog is for MySQL and MariaDB";
    for (one, other, why) in [
        (config, database, twice),
        (database, config, twice),
        (database, eventlog, on_sqlite),
        (eventlog, database, on_sqlite),
    ] {
        for arguments in [[one, other, status].concat(), [one, status, other].concat()] {
            let said = scene::run(&arguments, folder.path()).await.failed(2);
            assert!(said.contains(why), "{arguments:?}: {said}");
        }
    }
    let alone = scene::run(&[eventlog, status].concat(), folder.path()).await.failed(2);
    assert!(alone.contains("--eventlog wallet_log needs --database <URL>"), "{alone}");
}

on_every_database! { only mysql: an_event_log_of_another_name_is_named }

async fn an_event_log_of_another_name_is_named(scene: &Scene) {
    let node = scene.node_that_parks().await;
    scene.wallet_with_parked_event().await;
    let (url, log) = (scene.url(), scene.eventlog().unwrap());
    let named = ["--database", url, "--eventlog", &log, "events", "status"];
    assert_eq!(scene.json(&named).await[0]["parked"], 1);
    for apart in [
        ["--database", url, "events", "status", "--eventlog", &log],
        ["--eventlog", &log, "events", "status", "--database", url],
    ] {
        assert_eq!(scene.json(&apart).await[0]["parked"], 1);
    }
    // There is none of this name, and so no table in it.
    let none = format!("{log}_not");
    let said = scene.run(&["--database", url, "--eventlog", &none, "events", "status"]).await;
    assert!(said.failed(1).contains("there is no table `eventlog."));
    let said = scene.run(&["--eventlog", &log, "events", "status"]).await.failed(2);
    assert!(said.contains("--database <URL>"), "{said}");
    node.drain(std::time::Duration::from_secs(60)).await;
}
