//! Reads back what the database holds: the wallets, and the outbox by plain SQL.

use std::collections::BTreeMap;

use ekbatan::db::Dialect;
use ekbatan::prelude::*;
use serde_json::Value;
use sqlx::AssertSqlSafe;

use crate::wallet::Wallet;

type Failure = Box<dyn std::error::Error>;

/// Prints wallets and events, and returns whether they agree.
pub async fn print(
    databases: &Databases,
    eventlog: &str,
    ids: &[Id<Wallet>],
) -> Result<bool, Failure> {
    let wallets = databases.repository::<Wallet>().find_by_ids(ids).await?;
    println!("   {:<8} {:>10} {:>8}  updated", "wallet", "balance", "version");
    for wallet in &wallets {
        let updated = wallet.updated_date().format("%H:%M:%S%.6f");
        println!(
            "   {:<8} {:>10} {:>8}  {updated}",
            wallet.owner,
            wallet.balance,
            wallet.version()
        );
    }
    let events = events(databases, eventlog).await?;
    println!("\n   events by type:");
    let mut agree = true;
    for wallet in &wallets {
        let own = events.iter().filter(|event| event.model_id == wallet.id.to_string());
        let mut types: BTreeMap<&str, usize> = BTreeMap::new();
        let mut sum = Decimal::ZERO;
        let mut versions = Vec::new();
        for event in own {
            *types.entry(&event.event_type).or_default() += 1;
            if let Some(amount) = event.payload.get("amount") {
                sum += serde_json::from_value::<Decimal>(amount.clone())?;
            }
            versions.push(event.model_version);
        }
        let types: Vec<String> =
            types.iter().map(|(name, count)| format!("{count} x {name}")).collect();
        println!("   {:<8} {}; sum of deposits {sum}", wallet.owner, types.join(", "));
        agree &= sum == wallet.balance && versions == (1..=wallet.version()).collect::<Vec<i64>>();
    }
    println!("\n   latest events:");
    for event in events.iter().rev().take(3) {
        let principal = event.principal.as_deref().unwrap_or("-");
        println!(
            "   {} version {} by {principal}: {}",
            event.event_type, event.model_version, event.payload
        );
    }
    Ok(agree)
}

struct StoredEvent {
    model_id: String,
    model_version: i64,
    event_type: String,
    principal: Option<String>,
    payload: Value,
}

/// Reads the outbox on one of the framework's connections. Only the name of the table
/// differs: a plain table on SQLite, a table in a schema on PostgreSQL, and a table in
/// the database of the setting `eventlog` on MySQL and MariaDB.
async fn events(databases: &Databases, eventlog: &str) -> Result<Vec<StoredEvent>, Failure> {
    let select = |table: &str| {
        AssertSqlSafe(format!(
            "SELECT model_id, model_version, event_type, principal, payload FROM {table} \
             WHERE model_type = 'Wallet' ORDER BY model_id, model_version"
        ))
    };
    let rows = match databases.capabilities().dialect {
        Dialect::Sqlite => {
            let mut raw = databases.sqlite().await?;
            let sql = select("eventlog_events");
            let rows = sqlx::query_as(sql).fetch_all(raw.connection()?).await?;
            raw.release().await?;
            rows
        }
        Dialect::Postgres => {
            let mut raw = databases.postgres().await?;
            let sql = select("eventlog.events");
            let rows = sqlx::query_as(sql).fetch_all(raw.connection()?).await?;
            raw.release().await?;
            rows
        }
        _ => {
            let mut raw = databases.mysql().await?;
            let sql = select(&format!("`{eventlog}`.events"));
            let rows = sqlx::query_as(sql).fetch_all(raw.connection()?).await?;
            raw.release().await?;
            rows
        }
    };
    let event = |(model_id, model_version, event_type, principal, payload)| StoredEvent {
        model_id,
        model_version,
        event_type,
        principal,
        payload,
    };
    Ok(rows.into_iter().map(event).collect())
}
