//! The statements that a server gets, by its log.

use std::collections::HashMap;

use ekbatan::prelude::*;
use ekbatan_testkit::PostgresServer;
use support::{ScratchDatabase, until};

use crate::birth::node_that_does_not_look;
use crate::scene::{Ledger, deposit, executor, migrations, open_wallet};

/// A server that logs every statement, and an empty database of it.
pub async fn logging_server() -> (PostgresServer, ScratchDatabase) {
    let builder = PostgresServer::builder().setting("log_statement", "all");
    let server = builder.setting("log_line_prefix", "%p|").start().await.unwrap();
    let scratch = ScratchDatabase::at(&server.create_database().await.unwrap());
    (server, scratch)
}

/// The statements in a log, each with the process that ran it. A statement of several lines is one.
fn in_order(log: &str) -> Vec<(&str, String)> {
    let mut found: Vec<(&str, String)> = Vec::new();
    for line in log.lines() {
        let logged = line.split_once('|').and_then(|(process, rest)| {
            let (_, statement) = rest.strip_prefix("LOG:")?.split_once(": ")?;
            Some((process, statement))
        });
        match (logged, found.last_mut()) {
            (Some((process, statement)), _) => found.push((process, statement.trim().to_owned())),
            // Further lines of a statement begin with a tab.
            (None, Some((_, last))) if line.starts_with('\t') => {
                last.push(' ');
                last.push_str(line.trim());
            }
            _ => {}
        }
    }
    found
}

/// The statements of each session, by its process.
pub fn statements(log: &str) -> HashMap<&str, Vec<String>> {
    let mut sessions: HashMap<&str, Vec<String>> = HashMap::new();
    for (process, statement) in in_order(log) {
        sessions.entry(process).or_default().push(statement);
    }
    sessions
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claimed_event_is_handled_without_a_statement_in_between() {
    let (server, scratch) = logging_server().await;
    let databases = Databases::connect(&scratch.config().into()).await.unwrap();
    databases.migrate(&migrations()).await.unwrap();
    let executor = executor(&databases).await;
    let node = node_that_does_not_look(&executor).doorbell(false).handler(Ledger::posting());
    let _node = node.start().await.unwrap();
    let wallet = open_wallet(&executor).await;
    let posts = |text: &String| text.contains("entries") && text.contains("INSERT");
    until("the first event is posted", async || {
        in_order(&server.log().await.unwrap()).iter().any(|(_, text)| posts(text))
    })
    .await;
    // The node looks when it starts, which may fall in between. One deposit without that is enough.
    until("an event is handled by the next statement after its commit", async || {
        let begin = in_order(&server.log().await.unwrap()).len();
        deposit(&executor, wallet, 1).await;
        let mut since = Vec::new();
        // Without asking the database, whose log would show it.
        until("the event is posted", async || {
            let log = server.log().await.unwrap();
            since = in_order(&log).into_iter().skip(begin).map(|(_, text)| text).collect();
            since.iter().any(posts)
        })
        .await;
        let commits = |text: &String| text.contains("wallets") && text.contains("INSERT");
        let handled = since.iter().position(posts).unwrap();
        let committed = since.iter().position(commits).unwrap();
        let marks = since[handled].contains("deliveries");
        assert!(marks, "one statement has the effect and the mark: {}", since[handled]);
        handled == committed + 1
    })
    .await;
}
