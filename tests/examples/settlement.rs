//! The settlement: no order is lost, none is emitted twice or early, and late ones are refused, also if the
//! program is killed again and again. What is done by hand loses orders, and the same checker says so.

use std::process::Stdio;
use std::time::Duration;

use ekbatan_testkit::{MariaDbServer, MySqlServer, NatsServer, PostgresServer, TempSqlite};
use support::soak;

use super::bank::{Banks, Running};
use super::program::Program;

const RIGHT: &str = "5. Every order has ended as it was answered, once.";

fn settlement(database: &str) -> Program {
    Program::named("settlement").args(&["--listen", "127.0.0.1:0", "--database", database])
}

/// Plays a day, whose orders all end as they should.
fn play(database: &str, arguments: &[&str]) -> String {
    let output = settlement(database).args(&["--demo"]).args(arguments).run();
    assert_eq!(output.lines().last(), Some(RIGHT), "{output}");
    output
}

#[test]
fn settlement_plays_a_day_on_a_file() {
    let file = TempSqlite::new().unwrap();
    let output = play(&file.url(), &["--day", "4", "--batch", "3"]);
    assert!(output.contains("refused"), "{output}");
    // The same file again: windows of the day before stay as they are.
    play(&file.url(), &["--day", "4", "--banks", "1"]);
}

#[tokio::test]
async fn settlement_plays_a_day_on_postgres_and_nats_beside_a_slow_import() {
    let (server, nats) =
        (PostgresServer::shared().await.unwrap(), NatsServer::start().await.unwrap());
    let url = server.create_database().await.unwrap();
    play(&url, &["--day", "8", "--broker", &nats.url(), "--slow-import"]);
}

#[tokio::test]
async fn settlement_plays_a_day_on_mysql_beside_a_slow_import() {
    let server = MySqlServer::shared().await.unwrap();
    play(&server.create_database().await.unwrap(), &["--day", "8", "--slow-import"]);
}

#[tokio::test]
async fn settlement_plays_a_day_on_mariadb_beside_a_slow_import() {
    let server = MariaDbServer::shared().await.unwrap();
    play(&server.create_database().await.unwrap(), &["--day", "8", "--slow-import"]);
}

#[tokio::test]
async fn naive_settlement_leaves_orders_behind_that_commit_after_its_select() {
    let url = PostgresServer::shared().await.unwrap().create_database().await.unwrap();
    let naive = settlement(&url).args(&["--demo", "--day", "8", "--slow-import", "--naive"]);
    let output = naive.run_to_failure();
    // The ten of an import, and orders of banks that were sent at that moment.
    let left = output.lines().filter(|line| line.ends_with("behind")).filter_map(|line| {
        let (_, count) = line.split_once("was closed and has left ")?;
        count.split_once(" order(s)")?.0.parse::<u32>().ok()
    });
    assert!(left.max() >= Some(10), "{output}");
}

/// Lets the program end right after the commit of a batch, and settles what is left.
fn dies_after_a_batch(database: &str, more: &[&str]) -> Program {
    let dying =
        settlement(database).args(&["--demo", "--day", "8", "--die-after-batch"]).args(more);
    let ended = dying.into_command().stdin(Stdio::null()).output().unwrap();
    assert_eq!(ended.status.code(), None, "it dies by a signal: {ended:?}");
    settlement(database).args(&["--finish"]).args(more)
}

#[test]
fn naive_settlement_loses_the_batch_of_a_process_that_dies_before_it_publishes() {
    let file = TempSqlite::new().unwrap();
    let output = dies_after_a_batch(&file.url(), &["--naive"]).run_to_failure();
    assert!(output.lines().any(|line| line.ends_with("that nobody got")), "{output}");
}

#[test]
fn settlement_emits_the_batch_of_a_process_that_dies_before_it_is_sent() {
    let file = TempSqlite::new().unwrap();
    let output = dies_after_a_batch(&file.url(), &[]).run();
    assert_eq!(output.lines().last(), Some(RIGHT), "{output}");
}

/// Kills the program while banks send orders, again and again, and then lets it settle what is left.
fn goes_on_after_kills(database: &str, more: &[&str]) {
    let banks = Banks::start(3);
    for _ in 0..soak::rounds(3, 50) {
        let program =
            settlement(database).args(&["--cutoffs", "every 1s", "--batch", "5"]).args(more);
        let running = Running::start(program);
        banks.send_to(Some(running.address.clone()));
        // Usually long enough that a window closes. Some orders are always answered.
        std::thread::sleep(Duration::from_millis(fastrand::u64(1_200..3_500)));
        banks.wait_for(7);
        running.kill();
        banks.send_to(None);
    }
    // The last orders are answered.
    let running = Running::start(settlement(database).args(&["--cutoffs", "every 1s"]).args(more));
    banks.send_to(Some(running.address.clone()));
    let answers = banks.stop();
    running.kill();
    let output = settlement(database).args(&["--finish"]).args(more).run();
    assert_eq!(output.lines().last(), Some(RIGHT), "{output}");
    answers.assert_ended_so(database);
}

#[test]
fn settlement_goes_on_after_kills_on_a_file() {
    let file = TempSqlite::new().unwrap();
    goes_on_after_kills(&file.url(), &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn settlement_goes_on_after_kills_on_postgres_and_nats() {
    let (server, nats) =
        (PostgresServer::shared().await.unwrap(), NatsServer::start().await.unwrap());
    let (url, nats) = (server.create_database().await.unwrap(), nats.url());
    goes_on_after_kills(&url, &["--broker", &nats]);
}

#[test]
fn settlement_shows_a_page_and_refuses_what_is_no_order() {
    let file = TempSqlite::new().unwrap();
    // No cutoff comes, which would open further windows.
    let cutoffs = ["--cutoffs", "cron 0 0 1 1 * in UTC"];
    let running = Running::start(settlement(&file.url()).args(&["--banks", "2"]).args(&cutoffs));
    let page = running.get("/");
    assert!(page.contains("<title>Settlement</title>"), "{page}");
    // It loads nothing from elsewhere.
    assert!(!page.contains("http://") && !page.contains("https://"));
    let state: serde_json::Value = serde_json::from_str(&running.get("/state")).unwrap();
    assert_eq!(state["windows"].as_array().unwrap().len(), 4, "{state}");
    for (body, status) in [
        ("{}", "422"),
        ("no json", "400"),
        (
            r#"{"id":"00000000-0000-7000-8000-000000000000","bank":"bank-01","window":"none","amount":"1"}"#,
            "404",
        ),
    ] {
        assert_eq!(running.post(body).0, status, "{body}");
    }
    let window = state["windows"][0]["key"].as_str().unwrap();
    let bank = state["windows"][0]["bank"].as_str().unwrap();
    let order = |amount: &str| {
        format!(
            r#"{{"id":"01a2102c-dbb1-77e0-91ff-c9a8f168ca9d","bank":"{bank}","window":"{window}","amount":"{amount}"}}"#
        )
    };
    assert_eq!(running.post(&order("0")).0, "422");
    assert_eq!(running.post(&order("1.001")).0, "422");
    // A batch has no room for a sum of such amounts, so the window would never close.
    assert_eq!(running.post(&order("10000000000000")).0, "422");
    assert_eq!(
        running.post(&order("12.5")),
        ("202".to_owned(), r#"{"state":"PENDING"}"#.to_owned())
    );
    // Sent again it is the same order, and another one with its id is refused.
    assert_eq!(running.post(&order("12.5")).0, "202");
    assert_eq!(running.post(&order("13")).0, "422");
    let state: serde_json::Value = serde_json::from_str(&running.get("/state")).unwrap();
    assert_eq!(state["orders"].as_array().unwrap().len(), 1, "{state}");
    running.kill();
}

#[test]
fn settlement_names_what_it_does_not_understand() {
    for (argument, value, named) in [
        ("--broker", "smoke", "in-process"),
        ("--cutoffs", "sometimes", "no schedule"),
        ("--cutoffs", "delay 5s", "counts from the end"),
        ("--banks", "0", "1..=500"),
        ("--rate", "0", "is not in 1.."),
    ] {
        let complaint = Program::named("settlement").args(&[argument, value]).fail();
        assert!(complaint.contains(named), "{complaint}");
    }
}

#[test]
fn settlement_refuses_an_address_in_use_and_a_slow_import_on_a_file() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let complaint = Program::named("settlement").args(&["--listen", &address]).fail();
    let named = format!("cannot listen at {address}: ");
    assert!(complaint.contains(&named) && complaint.contains("--listen"), "{complaint}");

    let file = TempSqlite::new().unwrap();
    let complaint = settlement(&file.url()).args(&["--demo", "--slow-import"]).fail();
    assert!(complaint.contains("add --database postgres"), "{complaint}");
}
