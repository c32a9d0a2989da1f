//! The ledger: its lines, the action that adds one, and the handler that executes it.

use ekbatan::db::Dialect;
use ekbatan::domain::New;
use ekbatan::events::{Delivered, EventHandler, HandlerContext};
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};

use crate::wallet::{self, WalletEvent};

/// A line of the ledger.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "entries")]
pub struct Entry {
    pub id: Id<Entry>,
    pub amount: Decimal,
    pub state: EntryState,
}

#[derive(Debug, Clone, Copy, PartialEq, State)]
pub enum EntryState {
    Posted,
}

/// Adds a line.
pub struct PostEntry;

#[derive(Debug, Serialize, Deserialize)]
pub struct Posting {
    pub amount: Decimal,
}

impl Action for PostEntry {
    const NAME: &'static str = "ledger.post_entry";
    type Params = Posting;
    type Output = ();
    type Error = ReadError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        posting: &Posting,
    ) -> Result<(), ReadError> {
        let entry = Entry { id: ctx.new_id(), amount: posting.amount, state: EntryState::Posted };
        ctx.plan().add(New::new(entry, ()));
        Ok(())
    }
}

/// Posts each deposit, once.
pub struct PostToLedger;

impl EventHandler for PostToLedger {
    const NAME: &'static str = "ledger.post";
    type Event = WalletEvent;
    type Error = ExecuteError<ReadError>;

    async fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        event: &Delivered<WalletEvent>,
    ) -> Result<(), ExecuteError<ReadError>> {
        let WalletEvent::MoneyDeposited { amount, .. } = event.event else { return Ok(()) };
        // The commit of this action marks the event as handled, too.
        ctx.finish(&PostEntry, Posting { amount }).await
    }
}

/// The tables of the wallets and of the ledger.
pub fn migrations() -> Migrations {
    let entries = |id: &str, amount: &str, text: &str, number: &str| {
        format!(
            "CREATE TABLE entries (id {id} PRIMARY KEY, amount {amount} NOT NULL, \
             state {text} NOT NULL, version {number} NOT NULL)"
        )
    };
    let (amount, text) = ("numeric(38, 6)", "varchar(16)");
    let ascii = "char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL";
    wallet::migrations()
        .script_for(
            Dialect::Sqlite,
            2,
            "entries",
            entries("TEXT NOT NULL", "TEXT", "TEXT", "INTEGER"),
        )
        .script_for(Dialect::Postgres, 2, "entries", entries("uuid", amount, text, "bigint"))
        .script_for(Dialect::MySql, 2, "entries", entries(ascii, amount, text, "bigint"))
        .script_for(Dialect::MariaDb, 2, "entries", entries("uuid", amount, text, "bigint"))
}
