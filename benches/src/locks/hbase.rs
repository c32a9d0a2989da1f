//! Hand-written locks in HBase: one `checkAndMutate` that writes the holder with a term if the column
//! is empty, one that empties it if it has the holder, and tries again and again while it is taken.

use std::time::Duration;

use ekbatan::prelude::Uuid;
use ekbatan_testkit::HBaseServer;
use ekbatan_testkit::hbase::HBaseRows;

use super::key::{KEY, MAX_HOLD};
use crate::failure::Failure;

/// The table of the hand-written locks.
const TABLE: &str = "bench";

const COLUMN: &str = "holder";

/// The pause between tries, with jitter.
const POLL: Duration = Duration::from_millis(10);

/// Makes the table.
pub async fn create(server: &HBaseServer) -> Result<(), Failure> {
    server.create_table(TABLE, &[], &[("VERSIONS", "1")]).await?;
    // It is open when its rows can be read.
    loop {
        if let Ok(mut rows) = server.rows(TABLE).await
            && rows.get(KEY).await.is_ok()
        {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// One client, with its own connection.
pub struct CheckAndMutate {
    rows: HBaseRows,
    owner: Uuid,
}

impl CheckAndMutate {
    pub async fn connect(port: u16) -> Result<Self, Failure> {
        Ok(Self { rows: HBaseRows::open(port, TABLE).await?, owner: Uuid::now_v7() })
    }

    pub async fn acquire(&mut self) -> Result<(), Failure> {
        let term = u64::try_from(MAX_HOLD.as_millis())?;
        let mut jitter = self.owner.as_u64_pair().1;
        loop {
            let taken = (&self.owner.as_bytes()[..], Some(term));
            if self.rows.put_if(KEY, COLUMN, &[], taken).await? {
                return Ok(());
            }
            jitter = jitter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            tokio::time::sleep(POLL.mul_f64(0.5 + (jitter >> 40) as f64 / f64::from(1 << 24)))
                .await;
        }
    }

    pub async fn release(&mut self) -> Result<bool, Failure> {
        // Not a deletion: it would hide what is written in the same millisecond.
        Ok(self.rows.put_if(KEY, COLUMN, &self.owner.as_bytes()[..], (&[], None)).await?)
    }
}
