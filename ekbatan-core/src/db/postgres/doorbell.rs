//! The doorbell's session: `LISTEN` and `NOTIFY` on one channel.
//!
//! Invariants: the session does nothing else, and no data is committed on it. A notification has no
//! payload: it says that there is something, not what. Behind a pooler that gives a session away
//! after each transaction, nothing may be heard.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool};

use super::error::classify;
use crate::db::doorbell_session::DoorbellSession;
use crate::db::{DbError, DbErrorKind};

const CHANNEL: &str = "ekbatan_deliveries";

pub(super) struct PostgresDoorbell {
    listener: PgListener,
    /// Of one connection, that of the listener.
    pool: PgPool,
    /// The server process of the session, whose own notifications are not heard.
    process: u32,
}

impl PostgresDoorbell {
    pub(super) async fn open(
        options: &PgConnectOptions,
        listens: bool,
        timeout: Duration,
    ) -> Result<Self, DbError> {
        let name = format!("{}-doorbell", options.get_application_name().unwrap_or("ekbatan"));
        // A signal that is lost in a crash of the server is no loss, so the server need not wait for
        // its disk.
        let options =
            options.clone().application_name(&name).options([("synchronous_commit", "off")]);
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(timeout)
            .connect_lazy_with(options);
        let mut listener = PgListener::connect_with(&pool).await.map_err(classify)?;
        listener.eager_reconnect(false);
        let process: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
            .persistent(false)
            .fetch_one(&mut listener)
            .await
            .map_err(classify)?;
        if listens {
            listener.listen(CHANNEL).await.map_err(classify)?;
        }
        Ok(Self { listener, pool, process: process.cast_unsigned() })
    }
}

#[async_trait]
impl DoorbellSession for PostgresDoorbell {
    async fn heard(&mut self) -> Result<(), DbError> {
        loop {
            match self.listener.try_recv().await.map_err(classify)? {
                Some(notification) if notification.process_id() == self.process => {}
                Some(_) => break,
                None => {
                    let why = "the server closed the session of the doorbell";
                    return Err(DbError::new(DbErrorKind::Unavailable, why));
                }
            }
        }
        // Several signals mean the same as one.
        while self.listener.next_buffered().is_some() {}
        Ok(())
    }

    async fn ring(&mut self, own: usize) -> Result<bool, DbError> {
        let others = own.saturating_add(1);
        let sql = format!(
            "SELECT pg_notify('{CHANNEL}', '') FROM \
             (SELECT count(*) AS nodes FROM (SELECT FROM eventlog.nodes LIMIT {others}) AS present) AS counted \
             WHERE nodes > {own}"
        );
        // Not prepared: a pooler may hand the next statement to a session that does not know it.
        let rung = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_optional(&mut self.listener).await;
        rung.map(|row| row.is_some()).map_err(classify)
    }

    async fn check(&mut self) -> Result<(), DbError> {
        sqlx::raw_sql("SELECT 1").execute(&mut self.listener).await.map(drop).map_err(classify)
    }

    async fn close(self: Box<Self>) {
        let Self { listener, pool, .. } = *self;
        drop(listener);
        pool.close().await;
    }
}
