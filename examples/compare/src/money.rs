//! The wallets of a cell, and the check of their money.
//!
//! Invariants: each cell has its own wallets, so deposits of other cells are not counted.
//! The money is right only if balances, versions and events match the acknowledged
//! deposits, for each wallet, with one event per version.

use chrono::{DateTime, SecondsFormat, Utc};
use ekbatan::prelude::{Databases, EkbatanConfig, Uuid};
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use crate::access::{Access, Engine};
use crate::failure::Failure;
use crate::wallet::migrations;

/// The amount of each deposit, in cents.
pub const CENTS: i64 = 150;
/// The namespace of every event row.
pub const NAMESPACE: &str = "com.example.wallet";
/// The principal of every deposit.
pub const PRINCIPAL: &str = "teller";

/// How many wallets one statement inserts. This keeps a statement below the packet limit.
const AT_ONCE: u32 = 10_000;

/// Wallets with consecutive ids.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Wallets {
    first: Uuid,
    pub count: u32,
}

impl Wallets {
    /// Wallets with new ids.
    pub fn fresh(count: u32) -> Self {
        // The last bits count. They are random in a version 7 UUID.
        let first = Uuid::from_u128(Uuid::now_v7().as_u128() & !u128::from(u32::MAX));
        Self { first, count }
    }

    pub fn id(&self, rank: u32) -> Uuid {
        Uuid::from_u128(self.first.as_u128() | u128::from(rank))
    }

    /// The owner of these wallets, by which queries find them.
    fn owner(&self) -> String {
        format!("compare {}", self.first)
    }

    fn chunks(&self) -> impl Iterator<Item = Vec<String>> + '_ {
        (0..self.count).step_by(AT_ONCE as usize).map(|from| {
            let to = self.count.min(from + AT_ONCE);
            (from..to).map(|rank| self.id(rank).to_string()).collect()
        })
    }
}

/// Creates the tables.
pub async fn prepare(access: &Access) -> Result<(), Failure> {
    let databases = Databases::connect(&EkbatanConfig::from(access.ekbatan(2))).await?;
    databases.migrate(&migrations()).await?;
    databases.close().await;
    Ok(())
}

/// Inserts the wallets of a cell. First empties the tables if `own` says that the
/// database is private, so that every cell starts alike.
pub async fn open_wallets(access: &Access, wallets: &Wallets, own: bool) -> Result<(), Failure> {
    let tidy: &[&'static str] = match access.engine {
        _ if !own => &[],
        Engine::Postgres => &["TRUNCATE wallets, eventlog.events", "CHECKPOINT"],
        Engine::MySql | Engine::MariaDb => {
            &["TRUNCATE TABLE wallets", "TRUNCATE TABLE eventlog.events"]
        }
        Engine::Sqlite => &[
            "DELETE FROM wallets",
            // It refuses to delete young rows.
            "DROP TRIGGER IF EXISTS eventlog_keep_young_events",
            "DELETE FROM eventlog_events",
            "PRAGMA wal_checkpoint(TRUNCATE)",
        ],
    };
    let fill = match access.engine {
        Engine::Postgres => {
            "INSERT INTO wallets SELECT value::uuid, $1, 'EUR', 0, 'OPEN', 1, now(), now() \
             FROM jsonb_array_elements_text($2::jsonb) AS value"
        }
        Engine::MySql | Engine::MariaDb => {
            "INSERT INTO wallets SELECT id, ?, 'EUR', 0, 'OPEN', 1, UTC_TIMESTAMP(6), \
             UTC_TIMESTAMP(6) FROM JSON_TABLE(?, '$[*]' COLUMNS (id char(36) PATH '$')) ids"
        }
        Engine::Sqlite => {
            "INSERT INTO wallets SELECT value, ?1, 'EUR', '0.00', 'OPEN', 1, ?3, ?3 \
             FROM json_each(?2)"
        }
    };
    let owner = wallets.owner();
    // The same code for each driver. A macro, because the drivers share no types.
    macro_rules! run {
        ($options:expr, $($now:expr)?) => {{
            let mut connection = $options.connect().await?;
            for sql in tidy {
                sqlx::raw_sql(*sql).execute(&mut connection).await?;
            }
            for ids in wallets.chunks() {
                let ids = serde_json::to_string(&ids)?;
                let query = sqlx::query(fill).bind(&owner).bind(&ids)$(.bind($now))?;
                query.execute(&mut connection).await?;
            }
            connection.close().await?;
        }};
    }
    match access.engine {
        Engine::Postgres => run!(access.postgres()?,),
        Engine::MySql | Engine::MariaDb => run!(access.mysql()?,),
        Engine::Sqlite => run!(access.sqlite()?, timestamp(&Utc::now())),
    }
    Ok(())
}

/// A timestamp in ekbatan's format for SQLite.
pub fn timestamp(date: &DateTime<Utc>) -> String {
    date.to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// What the database holds of one cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Books {
    /// The sum of all balances, in cents.
    balance: i64,
    /// The sum of all version steps.
    changes: i64,
    /// The number of events.
    events: i64,
    /// The sum of the amounts in all events, in cents.
    deposited: i64,
    /// Wallets whose events do not match their versions or their balance.
    broken: i64,
}

/// Compares the database with the acknowledged deposits. The inner error describes a
/// difference.
pub async fn check(
    access: &Access,
    wallets: &Wallets,
    acknowledged: u64,
) -> Result<Result<u64, String>, Failure> {
    let sql = AssertSqlSafe(books_sql(access.engine));
    macro_rules! ask {
        ($options:expr) => {{
            let mut connection = $options.connect().await?;
            let query = sqlx::query_as(sql).bind(wallets.owner());
            let (balance, changes, events, deposited, broken) =
                query.fetch_one(&mut connection).await?;
            connection.close().await?;
            Books { balance, changes, events, deposited, broken }
        }};
    }
    let books = match access.engine {
        Engine::Postgres => ask!(access.postgres()?),
        Engine::MySql | Engine::MariaDb => ask!(access.mysql()?),
        Engine::Sqlite => ask!(access.sqlite()?),
    };
    let deposits = i64::try_from(acknowledged)?;
    let (cents, changes) = (deposits * CENTS, deposits);
    let right = Books { balance: cents, changes, events: changes, deposited: cents, broken: 0 };
    if books == right {
        return Ok(Ok(acknowledged));
    }
    Ok(Err(format!(
        "{deposits} deposits were acknowledged, which is {cents} cents, but the database holds {books:?}"
    )))
}

fn books_sql(engine: Engine) -> String {
    let (id, events, place, int) = match engine {
        Engine::Postgres => ("CAST(id AS text)", "eventlog.events", "$1", "bigint"),
        Engine::MySql => {
            ("CONVERT(id USING utf8mb4) COLLATE utf8mb4_0900_bin", "eventlog.events", "?", "signed")
        }
        Engine::MariaDb => ("CAST(id AS char)", "eventlog.events", "?", "signed"),
        Engine::Sqlite => ("id", "eventlog_events", "?", "integer"),
    };
    let (balance, amount) = match engine {
        Engine::Postgres => ("balance * 100", "CAST(payload ->> 'amount' AS numeric) * 100"),
        Engine::MySql | Engine::MariaDb => (
            "balance * 100",
            "CAST(json_unquote(json_extract(payload, '$.amount')) AS decimal(20, 2)) * 100",
        ),
        // SQLite has no exact decimals.
        Engine::Sqlite => {
            ("round(balance * 100)", "round(json_extract(payload, '$.amount') * 100)")
        }
    };
    format!(
        "WITH w AS (SELECT {id} AS id, CAST({balance} AS {int}) AS balance, version FROM wallets \
         WHERE owner = {place}), \
         e AS (SELECT model_id, count(*) AS n, count(DISTINCT model_version) AS versions, \
         min(model_version) AS least, max(model_version) AS most, \
         sum(CAST({amount} AS {int})) AS cents FROM {events} GROUP BY model_id) \
         SELECT CAST(sum(balance) AS {int}) AS balance, CAST(sum(version - 1) AS {int}) AS changes, \
         CAST(sum(coalesce(n, 0)) AS {int}) AS events, \
         CAST(sum(coalesce(cents, 0)) AS {int}) AS deposited, \
         CAST(sum(CASE WHEN coalesce(n, 0) = version - 1 AND coalesce(versions, 0) = version - 1 \
         AND coalesce(cents, 0) = balance AND coalesce(least, 2) = 2 \
         AND coalesce(most, 1) = version THEN 0 ELSE 1 END) AS {int}) AS broken \
         FROM w LEFT JOIN e ON e.model_id = w.id"
    )
}

/// Name and version of the database.
pub async fn version(access: &Access) -> Result<String, Failure> {
    let sql = match access.engine {
        Engine::Postgres => "SHOW server_version",
        Engine::MySql | Engine::MariaDb => "SELECT version()",
        Engine::Sqlite => "SELECT sqlite_version()",
    };
    macro_rules! ask {
        ($options:expr) => {{
            let mut connection = $options.connect().await?;
            let version: String = sqlx::query_scalar(sql).fetch_one(&mut connection).await?;
            connection.close().await?;
            version
        }};
    }
    let version = match access.engine {
        Engine::Postgres => ask!(access.postgres()?),
        Engine::MySql | Engine::MariaDb => ask!(access.mysql()?),
        Engine::Sqlite => ask!(access.sqlite()?),
    };
    let name = match access.engine {
        Engine::Postgres => "PostgreSQL",
        Engine::MySql => "MySQL",
        Engine::MariaDb => "MariaDB",
        Engine::Sqlite => "SQLite",
    };
    let number = version.split([' ', '-']).next().unwrap_or(&version);
    Ok(format!("{name} {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_one_behind_the_other_and_parse() {
        let wallets = Wallets::fresh(20_001);
        assert!(wallets.id(0) < wallets.id(1) && wallets.id(1) < wallets.id(20_000));
        let all: Vec<String> = wallets.chunks().flatten().collect();
        assert_eq!(all.len(), 20_001);
        assert_eq!(all[20_000].parse::<Uuid>().unwrap(), wallets.id(20_000));
    }
}
