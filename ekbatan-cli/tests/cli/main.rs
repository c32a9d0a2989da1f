//! Runs the program on databases with events that were given up.

use scene::Scene;
use support::until;

macro_rules! on_every_database {
    ($($tests:tt)*) => {
        support::on_every_database! {
            #[tokio::test(flavor = "multi_thread")]
            |dialect| &crate::scene::Scene::start(dialect).await;
            $($tests)*
        }
    };
}

mod readers;
mod scene;
mod shards;
mod surroundings;

on_every_database! {
    what_is_parked_is_shown_retried_and_skipped,
    dead_letters_are_counted_before_they_are_replayed_or_purged,
    remote_calls_in_doubt_are_listed_and_settled,
    handlers_are_paused_resumed_and_retired,
    events_that_wait_for_a_node_are_shown,
    jobs_are_listed_paused_resumed_and_run,
}

on_every_database! {
    on_sqlite_only:
    what_was_not_asked_properly_is_refused_by_name,
    an_action_that_no_node_has_registered_is_unknown,
    a_settled_call_whose_event_is_not_retried_says_how,
    an_event_that_cannot_be_read_hides_nothing_else,
    a_replay_that_broke_off_is_not_complete,
}

async fn what_is_parked_is_shown_retried_and_skipped(scene: &Scene) {
    let node = scene.node_that_parks().await;
    let wallet = scene.wallet_with_parked_event().await;
    let table = scene.run(&["events", "status"]).await.done();
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("shard  handler"), "{table}");
    assert!(lines[1].contains("ledger.post") && lines[1].contains("active"), "{table}");
    let status = scene.json(&["events", "status"]).await;
    assert_eq!((&status[0]["parked"], &status[0]["dead_letters"]), (&1.into(), &0.into()));
    assert!(status[0]["oldest_seconds"].as_i64().unwrap() >= 0);

    let parked = scene.json(&["events", "parked"]).await;
    assert_eq!((&parked[0]["handler"], &parked[0]["attempts"]), (&"ledger.post".into(), &1.into()));
    assert_eq!(parked[0]["error"], "the ledger is closed");
    assert_eq!(parked[0]["priority"], "normal");
    assert_eq!(parked[0]["model_id"], wallet.to_string());
    let id = parked[0]["id"].as_str().unwrap();
    assert!(scene.run(&["events", "parked"]).await.done().contains(id));

    let look = scene.json(&["events", "look", id]).await;
    assert_eq!((&look["event_type"], &look["model_version"]), (&"WalletOpened".into(), &1.into()));
    assert_eq!(look["payload"]["owner"], "alice");
    assert!(scene.run(&["events", "look", id]).await.done().contains("the ledger is closed"));

    let by = ["--who", "alice", "--why", "try it again"];
    let said = scene.run(&[&["events", "retry", id], &by[..]].concat()).await.done();
    assert_eq!(said, format!("{id} is tried again\n"));
    scene.until_parked().await;
    let log = scene.json(&["events", "log"]).await;
    assert_eq!((&log[0]["what"], &log[0]["who"]), (&"retry".into(), &"alice".into()));
    assert_eq!((&log[0]["why"], &log[0]["subject"]), (&"try it again".into(), &id.into()));

    let said = scene.run(&[&["events", "skip", id], &by[..]].concat()).await.done();
    assert_eq!(said, format!("{id} is skipped; its model goes on\n"));
    assert_eq!(scene.run(&["events", "parked"]).await.done(), "no event is parked\n");
    let again = scene.run(&[&["events", "skip", id], &by[..]].concat()).await.failed(1);
    let none = format!("ekbatan: there is no delivery {id} on shard 0/0 that is parked;");
    assert!(again.starts_with(&none), "{again}");
    let gone = scene.run(&["events", "look", id]).await.failed(1);
    assert!(gone.contains("a delivery that was handled is gone"), "{gone}");
    node.drain(std::time::Duration::from_secs(60)).await;
}

async fn remote_calls_in_doubt_are_listed_and_settled(scene: &Scene) {
    assert_eq!(scene.run(&["events", "in-doubt"]).await.done(), "no remote call is in doubt\n");
    let node = scene.node_that_charges().await;
    scene.wallet_with_parked_event().await;
    assert_eq!(scene.json(&["events", "status"]).await[0]["in_doubt"], 1);
    let calls = scene.json(&["events", "in-doubt"]).await;
    assert_eq!(
        (&calls[0]["handler"], &calls[0]["name"]),
        (&"bank.charge".into(), &"charge".into())
    );
    assert_eq!((&calls[0]["state"], &calls[0]["requests"]), (&"in doubt".into(), &1.into()));
    assert_eq!(calls[0]["error"], "the line to the bank is cut");
    let key = calls[0]["key"].as_str().unwrap();
    assert!(scene.run(&["events", "in-doubt"]).await.done().contains(key));

    let by = ["--who", "alice", "--why", "I called the bank"];
    let said = scene.run(&[&["events", "did-not-happen", key], &by[..]].concat()).await.done();
    assert_eq!(said, format!("the remote call {key} is settled: it did not happen\n"));
    until("it was made again", async || {
        let calls = scene.json(&["events", "in-doubt"]).await;
        calls[0]["requests"] == 2 && calls[0]["state"] == "in doubt"
    })
    .await;
    scene.until_parked().await;

    let happened = ["events", "happened", key, "--outcome"];
    let refused = scene.run(&[&happened[..], &["seventeen"], &by].concat()).await.failed(2);
    assert!(refused.contains("--outcome is no JSON"), "{refused}");
    let said = scene.run(&[&happened[..], &["-17"], &by].concat()).await.done();
    assert_eq!(said, format!("the remote call {key} is settled: it happened\n"));
    until("the event is handled", async || node.handlers()[0].handled == 1).await;
    let again = scene.run(&[&happened[..], &["-17"], &by].concat()).await.failed(1);
    assert!(again.contains("`ekbatan events in-doubt` lists them"), "{again}");
    let none = scene.run(&["events", "log", "--most", "0"]).await.failed(2);
    assert!(none.contains("use at least 1"), "{none}");
    let log = scene.json(&["events", "log"]).await;
    let log = log.as_array().unwrap();
    let settled = log.iter().find(|row| row["what"] == "settle").unwrap();
    assert_eq!(settled["subject"], format!("{key} happened"));
    node.drain(std::time::Duration::from_secs(60)).await;
}

async fn dead_letters_are_counted_before_they_are_replayed_or_purged(scene: &Scene) {
    let node = scene.node_with_dead_letters().await;
    for _ in 0..4 {
        scene.open_wallet().await;
    }
    scene.until_dead_letters(4).await;
    let letters = scene.json(&["events", "dead-letters", "--most", "3"]).await;
    assert_eq!(letters.as_array().unwrap().len(), 3);
    let [one, other] = [0, 1].map(|at| letters[at]["id"].as_str().unwrap());
    let by = ["--who", "alice", "--why", "the ledger is open"];
    for verb in ["retry", "skip"] {
        let not_parked = scene.run(&[&["events", verb, one], &by[..]].concat()).await.failed(1);
        let says = format!(
            "ekbatan: {one} is a dead letter and not parked; `ekbatan events replay {one}`"
        );
        assert!(not_parked.starts_with(&says), "{not_parked}");
    }

    let of_ledger = ["events", "replay", "--handler", "ledger.post"];
    let counted = scene.run(&of_ledger).await.done();
    assert_eq!(
        counted,
        "there are 4 dead letters of `ledger.post`; nothing was changed. \
         To replay them, add --yes 4 --who NAME --why REASON\n"
    );
    assert_eq!(scene.json(&of_ledger).await["count"], 4);
    let none = scene.json(&[&of_ledger[..], &["--event-type", "WalletClosed"]].concat()).await;
    assert_eq!(none["count"], 0);
    let unknown = scene.run(&[&of_ledger[..], &["--model-id", "seventeen"]].concat()).await.done();
    assert_eq!(
        unknown,
        "there are 0 dead letters of `ledger.post` with model id `seventeen`; nothing was changed\n"
    );
    let until = scene.json(&[&of_ledger[..], &["--until", "2001-01-01T00:00:00Z"]].concat()).await;
    assert_eq!(until["count"], 0);

    let refused = scene.run(&[&of_ledger[..], &["--yes", "3"], &by].concat()).await.failed(1);
    assert!(
        refused.contains("there are 4 dead letters of `ledger.post`, and --yes says 3"),
        "{refused}"
    );
    let said = scene.run(&[&["events", "dismiss", one], &by[..]].concat()).await.done();
    assert_eq!(said, format!("{one} is settled\n"));
    let look = scene.json(&["events", "look", one]).await;
    assert_eq!((&look["state"], &look["settled_by"]), (&"skipped".into(), &"alice".into()));

    scene.open_the_ledger();
    let said = scene.run(&[&["events", "replay", other], &by[..]].concat()).await.done();
    assert_eq!(said, format!("{other} is delivered once more\n"));
    let replayed = scene.json(&[&of_ledger[..], &["--yes", "2"], &by].concat()).await;
    assert_eq!(replayed["replayed"], 2);
    scene.until_handled(3).await;
    // What is settled is neither delivered nor decided a second time by its id.
    for (verb, id) in [("replay", one), ("replay", other), ("dismiss", other)] {
        let said = scene.run(&[&["events", verb, id], &by[..]].concat()).await.failed(1);
        let why = format!("there is no dead letter {id} on shard 0/0 that is not settled");
        assert!(said.contains(&why) && said.contains("--settled --model-id"), "{said}");
    }
    assert_eq!(scene.json(&["events", "look", other]).await["state"], "replayed");
    let of_model = letters[0]["model_id"].as_str().unwrap();
    let of_model = [&of_ledger[..], &["--settled", "--model-id", of_model, "--yes", "1"]].concat();
    assert_eq!(scene.json(&[&of_model[..], &by].concat()).await["replayed"], 1);
    scene.until_handled(4).await;

    let settled = ["events", "purge", "--handler", "ledger.post", "--settled"];
    assert_eq!(scene.json(&settled).await["count"], 4);
    let purged = scene.run(&[&settled[..], &["--yes", "4"], &by].concat()).await.done();
    assert_eq!(purged, "deleted 4 settled dead letters of `ledger.post`\n");
    let stored = ["events", "replay", "--handler", "ledger.post", "--stored"];
    assert_eq!(scene.json(&stored).await["count"], 4);
    let shouted = letters[0]["model_id"].as_str().unwrap().to_uppercase();
    let of_model = [&stored[..], &["--model-id", &shouted]].concat();
    assert_eq!(scene.json(&of_model).await["count"], 1);
    let log = scene.json(&["events", "log"]).await;
    let what: Vec<_> = log.as_array().unwrap().iter().map(|row| &row["what"]).collect();
    assert_eq!(what, ["purge", "replay", "replay"]);
    assert_eq!((&log[2]["counted"], &log[2]["done"]), (&2.into(), &2.into()));
    node.drain(std::time::Duration::from_secs(60)).await;
}

async fn handlers_are_paused_resumed_and_retired(scene: &Scene) {
    let node = scene.node_with_dead_letters().await;
    let by = ["--who", "alice", "--why", "an audit"];
    let ledger = "ledger.post";
    let state = async || scene.json(&["events", "status"]).await[0]["state"].clone();
    scene.run(&[&["events", "pause", ledger], &by[..]].concat()).await.done();
    assert_eq!(state().await, "paused");
    scene.run(&[&["events", "resume", ledger], &by[..]].concat()).await.done();
    assert_eq!(state().await, "active");
    node.drain(std::time::Duration::from_secs(60)).await;

    scene.open_wallet().await;
    let counted = scene.run(&["events", "retire", ledger]).await.done();
    assert!(counted.starts_with("`ledger.post` has 1 events that it has not handled"), "{counted}");
    let refused = scene.run(&[&["events", "retire", ledger, "--yes", "0"], &by[..]].concat()).await;
    assert!(refused.failed(1).contains("and --yes says 0; nothing was changed"));
    let retired =
        scene.json(&[&["events", "retire", ledger, "--yes", "1"], &by[..]].concat()).await;
    assert_eq!(retired["moved"], 1);
    let status = scene.run(&["events", "status"]).await.done();
    assert_eq!(status, "no handler has anything left; retired ones are not shown\n");
    assert_eq!(state().await, "retired");
    let unknown =
        scene.run(&[&["events", "pause", "ledger.pots"], &by[..]].concat()).await.failed(1);
    assert!(
        unknown.contains("knows no handler `ledger.pots`; it knows `ledger.post`"),
        "{unknown}"
    );
}

async fn an_action_that_no_node_has_registered_is_unknown(scene: &Scene) {
    let action = scene.open_wallet_later().await;
    let state = async || {
        let status = scene.json(&["events", "status"]).await;
        assert_eq!((&status[0]["handler"], &status[0]["pending"]), (&action.into(), &1.into()));
        status[0]["state"].clone()
    };
    assert_eq!(state().await, "unknown");
    let retire = ["events", "retire", action];
    let counted = scene.run(&retire).await.done();
    assert!(counted.contains("To retire it, add --yes 1 "), "{counted}");
    let by = ["--yes", "1", "--who", "alice", "--why", "nobody opens wallets"];
    assert_eq!(scene.json(&[&retire[..], &by].concat()).await["moved"], 1);
    assert_eq!(scene.json(&["events", "status"]).await, serde_json::json!([]));
    assert_eq!(scene.json(&["events", "log"]).await[0]["what"], "retire");
    // Only a dead letter is left of it, so there is nothing to count or to retire.
    let by = ["--yes", "0", "--who", "alice", "--why", "nobody opens wallets"];
    for of_letters in [retire.to_vec(), [&retire[..], &by].concat()] {
        let none = scene.run(&of_letters).await.failed(1);
        assert!(none.contains(&format!("`{action}` has only dead letters on shard 0/0")), "{none}");
    }
    scene.open_wallet_later().await;
    assert_eq!(state().await, "unknown");
    scene.register_calls().await;
    assert_eq!(state().await, "active");
}

/// Their process knows no handler, so that they have no deliveries.
async fn events_that_wait_for_a_node_are_shown(scene: &Scene) {
    let status = async || scene.json(&["events", "status"]).await[0].clone();
    scene.node_that_parks().await.drain(std::time::Duration::from_secs(60)).await;
    assert_eq!(status().await["undelivered"], false);
    scene.open_wallet_without_node().await;
    let waiting = status().await;
    assert_eq!((&waiting["pending"], &waiting["undelivered"]), (&0.into(), &true.into()));
    let node = scene.node_that_parks().await;
    scene.until_parked().await;
    let given = status().await;
    assert_eq!((&given["pending"], &given["undelivered"]), (&1.into(), &false.into()));
    node.drain(std::time::Duration::from_secs(60)).await;
}

async fn a_settled_call_whose_event_is_not_retried_says_how(scene: &Scene) {
    let node = scene.node_that_charges().await;
    scene.wallet_with_parked_event().await;
    let calls = scene.json(&["events", "in-doubt"]).await;
    let [key, delivery] = ["key", "delivery"].map(|name| calls[0][name].as_str().unwrap());
    let failing = "CREATE TRIGGER failing BEFORE INSERT ON eventlog_interventions \
        WHEN NEW.kind = 'RETRY' BEGIN SELECT RAISE(ABORT, 'the disk is full'); END";
    scene.execute(failing).await;
    let by = ["--who", "alice", "--why", "I called the bank"];
    let said = scene.run(&[&["events", "did-not-happen", key], &by[..]].concat()).await.failed(1);
    let begin = format!("ekbatan: the remote call {key} is settled, but its delivery {delivery} ");
    assert!(said.starts_with(&begin) && said.contains("the disk is full"), "{said}");
    let end = format!("retry it, as `ekbatan events retry {delivery}` does\n");
    assert!(said.ends_with(&end), "{said}");
    scene.execute("DROP TRIGGER failing").await;
    scene.run(&[&["events", "retry", delivery], &by[..]].concat()).await.done();
    until("it was made again", async || {
        scene.json(&["events", "in-doubt"]).await[0]["requests"] == 2
    })
    .await;
    node.drain(std::time::Duration::from_secs(60)).await;
}

async fn an_event_that_cannot_be_read_hides_nothing_else(scene: &Scene) {
    let spoil = "UPDATE eventlog_events SET action_id = 'import-1'";
    let look = async |id: &serde_json::Value| {
        let found = scene.json(&["events", "look", id.as_str().unwrap()]).await;
        let event = found["event"].as_str().unwrap();
        assert!(event.starts_with("cannot be read: ") && event.contains("`action_id`"), "{event}");
        assert_eq!((&found["handler"], &found["attempts"]), (&"ledger.post".into(), &1.into()));
        assert_eq!(found["error"], "the ledger is closed");
        found
    };
    let node = scene.node_that_parks().await;
    scene.wallet_with_parked_event().await;
    node.drain(std::time::Duration::from_secs(60)).await;
    scene.execute(spoil).await;
    let parked = scene.json(&["events", "parked"]).await[0].clone();
    assert_eq!(look(&parked["id"]).await["event_id"], parked["event_id"]);

    scene.execute("UPDATE eventlog_events SET action_id = id").await;
    let node = scene.node_with_dead_letters().await;
    let by = ["--who", "alice", "--why", "posted by hand"];
    let id = parked["id"].as_str().unwrap();
    scene.run(&[&["events", "retry", id], &by[..]].concat()).await.done();
    scene.until_dead_letters(1).await;
    let letter = scene.json(&["events", "dead-letters"]).await[0]["id"].clone();
    let id = letter.as_str().unwrap();
    scene.run(&[&["events", "dismiss", id], &by[..]].concat()).await.done();
    scene.execute(spoil).await;
    assert_eq!(look(&letter).await["settled_by"], "alice");
    node.drain(std::time::Duration::from_secs(60)).await;
}

/// As a process leaves it that was killed between two of its transactions.
async fn a_replay_that_broke_off_is_not_complete(scene: &Scene) {
    assert_eq!(scene.run(&["events", "log"]).await.done(), "no intervention is stored\n");
    let begun = "INSERT INTO eventlog_interventions (id, handler, kind, subject, who, why, started, \
        counted, done, state, version) VALUES ('0199a1c2-0000-7000-8000-000000000000', 'mail.send', \
        'REPLAY', 'dead letters of `mail.send`', 'alice', 'it is back', '2026-03-01T09:00:00.000000Z', \
        600, 256, 'BEGUN', 1)";
    scene.execute(begun).await;
    let log = scene.run(&["events", "log"]).await.done();
    let lines: Vec<Vec<&str>> = log.lines().map(|line| line.split_whitespace().collect()).collect();
    let at = lines[0].iter().position(|name| *name == "complete").unwrap();
    assert_eq!(lines[0][at - 1], "done");
    assert!(log.contains("  256   no  "), "{log}");
    assert_eq!(scene.json(&["events", "log"]).await[0]["complete"], false);
}

async fn what_was_not_asked_properly_is_refused_by_name(scene: &Scene) {
    let node = scene.node_that_parks().await;
    scene.wallet_with_parked_event().await;
    let parked = scene.json(&["events", "parked"]).await;
    let id = parked[0]["id"].as_str().unwrap();
    let nobody = scene.run(&["events", "retry", id]).await.failed(2);
    assert_eq!(
        nobody,
        "ekbatan: --who and --why are missing; say who does it and why, both are stored with what is done\n"
    );
    let no_who = scene.run(&["events", "retry", id, "--why", "a try"]).await.failed(2);
    assert_eq!(
        no_who,
        "ekbatan: --who is missing; say who does it, it is stored with what is done\n"
    );
    let no_why = scene.run(&["events", "skip", id, "--who", "alice"]).await.failed(2);
    assert!(no_why.contains("--why is missing"), "{no_why}");
    let blank = ["events", "skip", id, "--who", "alice", "--why", " "];
    assert!(scene.run(&blank).await.failed(1).contains("`why` is blank"));
    let date = ["events", "replay", "--handler", "ledger.post", "--from", "yesterday"];
    let date = scene.run(&date).await.failed(2);
    assert!(date.contains("--from `yesterday` is not a time"), "{date}");
    assert!(date.contains("write it as 2026-03-01T09:00:00Z"), "{date}");
    let replay = scene.run(&["events", "replay"]).await.failed(2);
    assert!(replay.contains("<ID|--handler <HANDLER>>"), "{replay}");
    // What selects several is not dropped in silence beside the id of one.
    for option in ["--settled", "--stored", "--yes=1", "--event-type=x", "--model-type=x"]
        .into_iter()
        .chain(["--model-id=x", "--from=2026-03-01T09:00:00Z", "--until=2026-03-01T09:00:00Z"])
    {
        let refused = scene.run(&["events", "replay", id, option]).await.failed(2);
        assert!(refused.contains("cannot be used with"), "{option}: {refused}");
    }
    let no_id = scene.run(&["events", "retry", "--json"]).await.failed(2);
    let no_id: serde_json::Value = serde_json::from_str(&no_id).unwrap();
    assert!(no_id["error"].as_str().unwrap().starts_with("the following required"), "{no_id}");
    let by = ["--yes", "0", "--who", "alice", "--why", "the ledger is open"];
    for verb in ["replay", "purge"] {
        let of_nobody = ["events", verb, "--handler", "ledger.pots"];
        for of_nobody in [of_nobody.to_vec(), [&of_nobody[..], &by].concat()] {
            let unknown = scene.run(&of_nobody).await.failed(1);
            assert_eq!(
                unknown,
                "ekbatan: there is no handler `ledger.pots` on shard 0/0; there are `ledger.post`\n"
            );
        }
        let of_ledger = scene.json(&["events", verb, "--handler", "ledger.post"]).await;
        assert_eq!(of_ledger["count"], 0);
    }
    let retired = scene.run(&["events", "retire", "ledger.pots"]).await.failed(1);
    assert!(retired.contains("there is no handler `ledger.pots`"), "{retired}");
    let no_id = scene.run(&["events", "look", "seventeen"]).await.failed(2);
    assert!(no_id.contains("an id is a UUID, such as 0199a1c2-"), "{no_id}");
    let purge = scene.run(&["events", "purge", "--stored", "--handler", "ledger.post"]).await;
    assert!(purge.failed(2).contains("stored events are not purged"));
    let shard = scene.run(&["events", "status", "--shard", "7/7"]).await.failed(2);
    assert_eq!(shard, "ekbatan: there is no shard `7/7`; write GROUP/MEMBER: there is 0/0\n");
    scene.run(&["events", "status", "--shard", "0/0"]).await.done();
    let jobs = scene.run(&["jobs", "list", "--shard", "0/0"]).await.failed(2);
    assert_eq!(jobs, "ekbatan: all jobs are on the default shard; leave out --shard\n");

    let folder = tempfile::tempdir().unwrap();
    let nowhere = scene::run(&["events", "status"], folder.path()).await.failed(2);
    assert!(nowhere.starts_with("ekbatan: there is no file config/ekbatan.yml;"), "{nowhere}");
    let wrong = folder.path().join("wrong.yml");
    std::fs::write(&wrong, "ekbatan: {configs: {primary-config: {urll: 'sqlite:x'}}}").unwrap();
    let wrong = ["--config", wrong.to_str().unwrap(), "events", "status", "--json"];
    let wrong = scene::run(&wrong, folder.path()).await.failed(2);
    let error: serde_json::Value = serde_json::from_str(&wrong).unwrap();
    assert!(error["error"].as_str().unwrap().contains("did you mean `url`?"), "{error}");
    node.drain(std::time::Duration::from_secs(60)).await;
}

async fn jobs_are_listed_paused_resumed_and_run(scene: &Scene) {
    assert_eq!(scene.run(&["jobs", "list"]).await.done(), "no job is known\n");
    let node = scene.node_with_job().await;
    let jobs = scene.json(&["jobs", "list"]).await;
    assert_eq!((&jobs[0]["job"], &jobs[0]["state"]), (&"bank.close_days".into(), &"active".into()));
    assert!(scene.run(&["jobs", "list"]).await.done().starts_with("job "));
    let none = ["jobs", "history", "bank.close_days"];
    assert_eq!(scene.run(&none).await.done(), "the job has not run yet\n");

    let by = ["--who", "alice", "--why", "a holiday"];
    let said = scene.run(&[&["jobs", "pause", "bank.close_days"], &by[..]].concat()).await.done();
    assert_eq!(said, "`bank.close_days` is paused; a run that goes on goes on\n");
    assert_eq!(scene.json(&["jobs", "list"]).await[0]["state"], "paused");
    // An operator's run does not wait for the end of the pause.
    let run = scene.json(&[&["jobs", "run", "bank.close_days"], &by[..]].concat()).await;
    let history = async || scene.json(&["jobs", "history", "bank.close_days"]).await;
    until("the job has run", async || history().await[0]["state"] == "done").await;
    let runs = history().await;
    assert_eq!((&runs[0]["id"], &runs[0]["kind"]), (&run["run"], &"manual".into()));
    assert_eq!(runs.as_array().unwrap().len(), 1);
    let said = scene.run(&[&["jobs", "resume", "bank.close_days"], &by[..]].concat()).await.done();
    assert_eq!(said, "`bank.close_days` goes on with its next slot\n");
    assert_eq!(scene.json(&["jobs", "list"]).await[0]["state"], "active");

    let log = scene.json(&["events", "log"]).await;
    let did: Vec<_> = log.as_array().unwrap().iter().map(|row| row["what"].clone()).collect();
    assert_eq!(did, ["resume", "run", "pause"]);
    let unknown = scene.run(&["jobs", "history", "bank.open"]).await.failed(1);
    assert!(
        unknown.contains("there is no job `bank.open`; there is `bank.close_days`"),
        "{unknown}"
    );
    let nobody = scene.run(&["jobs", "run", "bank.close_days"]).await.failed(2);
    assert!(nobody.contains("--who and --why are missing"), "{nobody}");
    node.drain(std::time::Duration::from_secs(60)).await;
}
