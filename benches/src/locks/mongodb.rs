//! Hand-written locks in MongoDB: one document, taken by an upsert with a filter and the client's
//! clock, as most guides show it, and confirmed by a majority.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ekbatan::prelude::Uuid;
use mongodb::bson::{Document, doc};
use mongodb::error::{Error, ErrorKind};
use mongodb::{Client, Database};

use super::key::{KEY, MAX_HOLD};
use crate::failure::Failure;

/// Wait before a client retries a busy key, between half and one and a half times this.
const POLL: Duration = Duration::from_millis(10);

/// One client, with a connection pool of its own.
pub struct MongoDocument {
    database: Database,
    owner: String,
}

impl MongoDocument {
    pub async fn connect(url: &str) -> Result<Self, Failure> {
        let client = Client::with_uri_str(url).await?;
        Ok(Self { database: client.database("bench"), owner: Uuid::now_v7().to_string() })
    }

    pub async fn acquire(&mut self) -> Result<(), Failure> {
        loop {
            let now = milliseconds()?;
            let until = now + i64::try_from(MAX_HOLD.as_millis())?;
            let take = doc! {
                "findAndModify": "locks",
                "query": { "_id": KEY, "until": { "$lte": now } },
                "update": { "$set": { "owner": &self.owner, "until": until } },
                "upsert": true,
                "new": true,
                "writeConcern": { "w": "majority", "j": true },
            };
            match self.database.run_command(take).await {
                Ok(_) => return Ok(()),
                Err(error) if is_duplicate(&error) => {
                    let jitter = Uuid::now_v7().as_u64_pair().1 as f64 / u64::MAX as f64;
                    tokio::time::sleep(POLL.mul_f64(0.5 + jitter)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub async fn release(&mut self) -> Result<bool, Failure> {
        let release = doc! {
            "update": "locks",
            "updates": [{
                "q": { "_id": KEY, "owner": &self.owner },
                "u": { "$set": { "until": 0_i64 } },
            }],
            "writeConcern": { "w": "majority", "j": true },
        };
        let answer: Document = self.database.run_command(release).await?;
        Ok(answer.get_i32("n").is_ok_and(|found| found == 1))
    }
}

/// FerretDB has no code of its own for a duplicate that an upsert runs into.
fn is_duplicate(error: &Error) -> bool {
    match &*error.kind {
        ErrorKind::Command(error) => {
            error.code == 11000 || error.message.to_lowercase().contains("duplicate key")
        }
        _ => false,
    }
}

fn milliseconds() -> Result<i64, Failure> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}
