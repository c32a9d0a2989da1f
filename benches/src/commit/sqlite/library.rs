//! The limit: SQLite's own library on the thread of the caller, without a pool and without a
//! driver in between.

use std::path::Path;
use std::time::Duration;

use ekbatan::prelude::*;
use rusqlite::{CachedStatement, Connection, params};

use super::{INSERT, SELECT, UPDATE, timestamp};
use crate::commit::options::CommitDurability;
use crate::commit::rows::{DepositEvent, NAMESPACE, PRINCIPAL, WalletRow};
use crate::failure::Failure;

/// One connection. Its statements are prepared once.
pub struct Library(Connection);

impl Library {
    pub fn open(file: &Path, durability: CommitDurability) -> Result<Self, Failure> {
        let connection = Connection::open(file)?;
        connection.busy_timeout(Duration::from_secs(30))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        let synchronous = match durability {
            CommitDurability::Full => "FULL",
            CommitDurability::Wal => "NORMAL",
        };
        connection.pragma_update(None, "synchronous", synchronous)?;
        Ok(Self(connection))
    }

    /// The same five statements as in the `sqlx-transaction` mode.
    pub fn deposit(&mut self, wallet: Uuid, amount: Decimal) -> Result<(), Failure> {
        let started = Utc::now();
        self.prepared("BEGIN IMMEDIATE")?.execute([])?;
        let mut row = self.read(wallet)?;
        row.balance += amount;
        let event = DepositEvent::new(started, wallet, amount, row.balance);
        if !self.update(wallet, &row, &event)? {
            // The transaction is the only writer from its beginning.
            return Err(format!("wallet {wallet} changed within the transaction").into());
        }
        self.insert(wallet, &row, &event)?;
        self.prepared("COMMIT")?.execute([])?;
        Ok(())
    }

    fn prepared(&self, sql: &str) -> rusqlite::Result<CachedStatement<'_>> {
        self.0.prepare_cached(sql)
    }

    fn read(&self, wallet: Uuid) -> Result<WalletRow, Failure> {
        let mut select = self.prepared(SELECT)?;
        let mut rows = select.query([wallet.to_string()])?;
        let row = rows.next()?.ok_or("the wallet is not there")?;
        let text = |at: usize| row.get::<_, String>(at);
        let _: Uuid = text(0)?.parse()?;
        let _ = DateTime::parse_from_rfc3339(&text(6)?)?;
        let _ = DateTime::parse_from_rfc3339(&text(7)?)?;
        Ok(WalletRow {
            owner: text(1)?,
            currency: text(2)?,
            balance: text(3)?.parse()?,
            state: text(4)?,
            version: row.get(5)?,
        })
    }

    fn update(
        &self,
        wallet: Uuid,
        row: &WalletRow,
        event: &DepositEvent,
    ) -> rusqlite::Result<bool> {
        let changed = self.prepared(UPDATE)?.execute(params![
            row.owner,
            row.currency,
            row.balance.to_string(),
            row.state,
            timestamp(&event.completed),
            wallet.to_string(),
            row.version,
        ])?;
        Ok(changed == 1)
    }

    fn insert(&self, wallet: Uuid, row: &WalletRow, event: &DepositEvent) -> rusqlite::Result<()> {
        self.prepared(INSERT)?.execute(params![
            event.id.to_string(),
            NAMESPACE,
            event.action.to_string(),
            "wallet.deposit_money",
            event.params.to_string(),
            timestamp(&event.started),
            timestamp(&event.completed),
            wallet.to_string(),
            "Wallet",
            "WalletMoneyDeposited",
            event.payload.to_string(),
            timestamp(&event.completed),
            false,
            PRINCIPAL,
            None::<String>,
            None::<String>,
            row.version + 1,
            0,
            1,
        ])?;
        Ok(())
    }
}
