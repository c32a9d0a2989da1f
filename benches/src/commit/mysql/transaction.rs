//! The usual form: a pool and a transaction, at the server's default isolation level.

use ekbatan::prelude::*;
use sqlx::MySqlPool;
use sqlx::mysql::MySqlDatabaseError;

use super::rows::{bind_event, bind_row, read};
use crate::commit::rows::DepositEvent;
use crate::failure::Failure;

const UPDATE: &str = "UPDATE wallets SET owner = ?, currency = ?, balance = ?, state = ?, updated_date = ?, \
                      version = version + 1 WHERE id = ? AND version = ?";

const INSERT: &str = "INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, \
                      started_date, completion_date, model_id, model_type, event_type, payload, event_date, \
                      delivered, principal, reason, trace_parent, model_version, event_index, event_version) \
                      VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

pub async fn transaction(pool: &MySqlPool, wallet: Uuid, amount: Decimal) -> Result<(), Failure> {
    let started = Utc::now();
    loop {
        let mut transaction = pool.begin().await?;
        let mut row = read(&mut transaction, wallet).await?;
        row.balance += amount;
        let event = DepositEvent::new(started, wallet, amount, row.balance);
        let updated =
            bind_row(sqlx::query(UPDATE), wallet, &row, &event).execute(&mut *transaction).await;
        let updated = match updated {
            Err(sqlx::Error::Database(error)) if is_conflict(&*error) => 0,
            updated => updated?.rows_affected(),
        };
        if updated == 0 {
            transaction.rollback().await?;
            continue;
        }
        bind_event(sqlx::query(INSERT), wallet, &row, &event).execute(&mut *transaction).await?;
        return Ok(transaction.commit().await?);
    }
}

/// Newer versions of MariaDB reject an update of a row that changed after the
/// transaction's snapshot (1020). Both servers report deadlocks (1213).
fn is_conflict(error: &dyn sqlx::error::DatabaseError) -> bool {
    error
        .try_downcast_ref::<MySqlDatabaseError>()
        .is_some_and(|error| matches!(error.number(), 1020 | 1213))
}
