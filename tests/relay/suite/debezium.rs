//! What Debezium gets by the publication of the guide: each event once, and nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use ekbatan::prelude::*;
use ekbatan_testkit::PostgresServer;
use serde::{Deserialize, Serialize};
use sqlx::{Connection, PgConnection, Row};
use support::wallet::{self, Wallet};

use crate::scene::{deposit, node, open_wallet, relay};
use crate::site::{Kind, Limits};

/// The page of the guide.
const GUIDE: &str = include_str!("../../../docs/src/relay.md");

/// Changes a wallet without an event, and enqueues a call of itself.
struct Rename;

#[derive(Debug, Serialize, Deserialize)]
struct Renaming {
    wallet: Id<Wallet>,
    again: bool,
}

impl Action for Rename {
    const NAME: &'static str = "wallet.rename";
    type Params = Renaming;
    type Output = ();
    type Error = ReadError;

    async fn perform(&self, ctx: &mut ActionContext<'_>, to: &Renaming) -> Result<(), ReadError> {
        let wallet = ctx.get(to.wallet).await?;
        ctx.plan().update(wallet.apply(|wallet| wallet.owner.push('x')));
        if to.again {
            ctx.plan().enqueue(&Rename, Renaming { wallet: to.wallet, again: false });
        }
        Ok(())
    }
}

/// The block of the guide in this language.
fn block(language: &str) -> &'static str {
    let begin = format!("```{language}\n");
    let (_, rest) = GUIDE.split_once(&begin).unwrap();
    rest.split_once("```").unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_publishes_each_event_once_and_nothing_else() {
    let server = PostgresServer::builder().setting("wal_level", "logical").start().await.unwrap();
    let url = server.create_database().await.unwrap();
    let databases = Databases::open(&url).await.unwrap();
    databases.migrate(&wallet::migrations()).await.unwrap();
    let executor = crate::scene::executor(&databases).await;
    let mut raw = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(block("sql")).execute(&mut raw).await.unwrap();
    sqlx::query("SELECT pg_create_logical_replication_slot('debezium', 'pgoutput')")
        .execute(&mut raw)
        .await
        .unwrap();

    let wallet = open_wallet(&executor).await;
    deposit(&executor, wallet, 3).await;
    executor.execute(&Rename, Renaming { wallet, again: true }).await.unwrap();
    // A late relay has the rows of all events updated, and a reader marks them.
    let site = Kind::InProcess.site(Limits::default()).await;
    let node = node(&executor).relay(relay(site.broker())).action(Rename).start().await.unwrap();
    support::until("the events have arrived", async || site.received().await.len() == 4).await;
    support::until("the call has run", async || {
        databases.repository::<Wallet>().find(wallet).await.unwrap().unwrap().owner == "alicexx"
    })
    .await;
    deposit(&executor, wallet, 1).await;
    node.drain(Duration::from_secs(30)).await;
    let fanned_out = "SELECT count(*) FROM eventlog.events WHERE fanned_out > 0";
    let (swept,): (i64,) = sqlx::query_as(fanned_out).fetch_one(&mut raw).await.unwrap();
    assert!(swept > 0, "rows were updated");
    sqlx::query("UPDATE eventlog.events SET delivered = true").execute(&mut raw).await.unwrap();

    let events = changes(&mut raw).await;
    let column = |row: &BTreeMap<String, Option<String>>, name: &str| row[name].clone();
    let types: Vec<_> = events.iter().map(|row| column(row, "event_type").unwrap()).collect();
    let deposited = "WalletMoneyDeposited";
    assert_eq!(types, ["WalletOpened", deposited, deposited, deposited, deposited]);
    let mut ids: Vec<_> = events.iter().map(|row| column(row, "id")).collect();
    ids.dedup();
    assert_eq!(ids.len(), 5);
    let versions: Vec<_> = events.iter().map(|row| column(row, "model_version").unwrap()).collect();
    // The renamings have versions, and no events.
    assert_eq!(versions, ["1", "2", "3", "4", "7"]);
    for row in &events {
        assert_eq!(column(row, "model_id"), Some(wallet.to_string()));
        assert_eq!(column(row, "model_type").as_deref(), Some("Wallet"));
        assert!(column(row, "payload").unwrap().starts_with('{'));
    }
    // Every column that the connector of the guide names is there.
    for line in block("properties").lines() {
        let Some((key, value)) = line.split_once('=') else { continue };
        let named = match key {
            "transforms.outbox.table.fields.additional.placement" => {
                value.split(',').filter_map(|field| field.split(':').next()).collect()
            }
            key if key.starts_with("transforms.outbox.table.field.event.") => vec![value],
            "transforms.outbox.route.by.field" => vec![value],
            _ => Vec::new(),
        };
        for name in named {
            assert!(events[0].contains_key(name), "{line}");
        }
    }
}

/// The rows of all messages of the slot. Fails on messages that are no insertions.
async fn changes(raw: &mut PgConnection) -> Vec<BTreeMap<String, Option<String>>> {
    let messages = sqlx::query(
        "SELECT data FROM pg_logical_slot_get_binary_changes('debezium', NULL, NULL, \
         'proto_version', '1', 'publication_names', 'events')",
    )
    .fetch_all(raw)
    .await
    .unwrap();
    let (mut columns, mut rows) = (Vec::new(), Vec::new());
    for message in messages {
        let data: Vec<u8> = message.get(0);
        let mut rest = Rest(&data[1..]);
        match data[0] {
            // Begin and commit of a transaction.
            b'B' | b'C' => {}
            b'R' => columns = rest.relation(),
            b'I' => rows.push(columns.iter().cloned().zip(rest.row()).collect()),
            other => panic!("a message `{}` is no insertion", other as char),
        }
    }
    rows
}

/// What is left of a message.
struct Rest<'m>(&'m [u8]);

impl Rest<'_> {
    fn take(&mut self, count: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken.to_vec()
    }

    fn short(&mut self) -> usize {
        let bytes = self.take(2);
        usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn text(&mut self) -> String {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap();
        let text = String::from_utf8(self.take(end)).unwrap();
        self.take(1);
        text
    }

    /// The names of the columns.
    fn relation(&mut self) -> Vec<String> {
        self.take(4);
        let (_schema, _table) = (self.text(), self.text());
        self.take(1);
        let count = self.short();
        let column = |rest: &mut Self| {
            rest.take(1);
            let name = rest.text();
            rest.take(8);
            name
        };
        (0..count).map(|_| column(self)).collect()
    }

    /// The values of the columns.
    fn row(&mut self) -> Vec<Option<String>> {
        assert_eq!(self.take(5)[4], b'N');
        let count = self.short();
        let value = |rest: &mut Self| match rest.take(1)[0] {
            b't' => {
                let length = u32::from_be_bytes(rest.take(4).try_into().unwrap());
                Some(String::from_utf8(rest.take(length as usize)).unwrap())
            }
            _ => None,
        };
        (0..count).map(|_| value(self)).collect()
    }
}
