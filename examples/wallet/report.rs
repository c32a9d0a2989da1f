//! What the database holds, read back by plain SQL: the wallets and the outbox.

use std::collections::BTreeMap;

use ekbatan::prelude::*;
use sqlx::{AssertSqlSafe, Connection, Row};

use crate::wallet::Wallet;

/// Prints wallets and events and answers whether they agree.
pub async fn print(
    databases: &Databases,
    url: &str,
    ids: &[Id<Wallet>],
) -> Result<bool, Box<dyn std::error::Error>> {
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
    let events = events(url).await?;
    println!("\n   events of the wallets, counted by type:");
    let mut agree = true;
    for wallet in &wallets {
        let own: Vec<&StoredEvent> =
            events.iter().filter(|event| event.model_id == wallet.id.to_string()).collect();
        let mut types: BTreeMap<&str, usize> = BTreeMap::new();
        let mut sum = Decimal::ZERO;
        for event in &own {
            *types.entry(&event.event_type).or_default() += 1;
            if let Some(amount) = event.payload.get("amount") {
                sum += serde_json::from_value::<Decimal>(amount.clone())?;
            }
        }
        let types: Vec<String> =
            types.iter().map(|(name, count)| format!("{count} x {name}")).collect();
        println!("   {:<8} {}; deposits add up to {sum}", wallet.owner, types.join(", "));
        let versions: Vec<i64> = own.iter().map(|event| event.model_version).collect();
        agree &= sum == wallet.balance && versions == (1..=wallet.version()).collect::<Vec<i64>>();
    }
    println!("\n   the latest events:");
    for event in events.iter().rev().take(3) {
        println!(
            "   {} version {} by {}: {}",
            event.event_type, event.model_version, event.principal, event.payload
        );
    }
    Ok(agree)
}

struct StoredEvent {
    model_id: String,
    model_version: i64,
    event_type: String,
    principal: String,
    payload: serde_json::Value,
}

const SELECT: &str = "SELECT CAST(model_id AS text), CAST(model_version AS bigint), CAST(event_type AS text), \
                      CAST(coalesce(principal, '-') AS text), CAST(payload AS text)";

async fn events(url: &str) -> Result<Vec<StoredEvent>, Box<dyn std::error::Error>> {
    fn read<'r, R: Row>(row: &'r R) -> Result<StoredEvent, sqlx::Error>
    where
        usize: sqlx::ColumnIndex<R>,
        String: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
        i64: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
    {
        Ok(StoredEvent {
            model_id: row.try_get(0)?,
            model_version: row.try_get(1)?,
            event_type: row.try_get(2)?,
            principal: row.try_get(3)?,
            payload: serde_json::from_str(&row.try_get::<String, _>(4)?).unwrap_or_default(),
        })
    }
    let order = "WHERE model_type = 'Wallet' ORDER BY model_id, model_version";
    let mut events: Vec<StoredEvent> = if url.starts_with("sqlite") {
        let mut connection = sqlx::SqliteConnection::connect(url).await?;
        let sql = format!("{SELECT} FROM eventlog_events {order}");
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await?;
        rows.iter().map(read).collect::<Result<_, _>>()?
    } else {
        let mut connection = sqlx::PgConnection::connect(url).await?;
        let sql = format!("{SELECT} FROM eventlog.events {order}");
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await?;
        rows.iter().map(read).collect::<Result<_, _>>()?
    };
    events.retain(|event| !event.event_type.is_empty());
    Ok(events)
}
