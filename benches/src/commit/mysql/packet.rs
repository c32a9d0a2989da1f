//! The fastest form by hand: all writes travel in one packet of several statements.

use ekbatan::prelude::*;
use sqlx::{AssertSqlSafe, MySqlConnection};

use super::rows::read;
use crate::commit::rows::{DepositEvent, NAMESPACE, PRINCIPAL, WalletRow};
use crate::failure::Failure;

/// A transaction starts implicitly, and each statement sees all committed rows.
const SETUP: &str = "SET autocommit = 0; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// Prepares a session for [`packet`].
pub async fn set_up(connection: &mut MySqlConnection) -> Result<(), Failure> {
    sqlx::raw_sql(SETUP).execute(connection).await?;
    Ok(())
}

pub async fn packet(
    connection: &mut MySqlConnection,
    wallet: Uuid,
    amount: Decimal,
) -> Result<(), Failure> {
    let started = Utc::now();
    loop {
        let mut row = read(connection, wallet).await?;
        row.balance += amount;
        let event = DepositEvent::new(started, wallet, amount, row.balance);
        let sql = AssertSqlSafe(statements(wallet, &row, &event));
        let written = sqlx::raw_sql(sql).execute(&mut *connection).await?.rows_affected();
        // Both the row and the event were written, or neither.
        if written == 2 {
            return Ok(());
        }
    }
}

/// A stale `UPDATE` matches no row, and then the `INSERT` selects no row either. A packet
/// of several statements takes no parameters, so the values are part of the text.
fn statements(wallet: Uuid, row: &WalletRow, event: &DepositEvent) -> String {
    let timestamp = |date: &DateTime<Utc>| date.format("'%Y-%m-%d %H:%M:%S%.6f'").to_string();
    let (started, completed) = (timestamp(&event.started), timestamp(&event.completed));
    format!(
        "UPDATE wallets SET owner = {owner}, currency = {currency}, balance = {balance}, state = {state}, \
         updated_date = {completed}, version = version + 1 WHERE id = '{wallet}' AND version = {version}; \
         INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, \
         started_date, completion_date, model_id, model_type, event_type, payload, event_date, \
         delivered, principal, reason, trace_parent, model_version, event_index, event_version) \
         SELECT '{id}', '{NAMESPACE}', '{action}', 'wallet.deposit_money', {params}, {started}, {completed}, \
         '{wallet}', 'Wallet', 'WalletMoneyDeposited', {payload}, {completed}, false, '{PRINCIPAL}', \
         NULL, NULL, {version} + 1, 0, 1 FROM DUAL WHERE ROW_COUNT() = 1; \
         COMMIT",
        owner = quoted(&row.owner),
        currency = quoted(&row.currency),
        balance = row.balance,
        state = quoted(&row.state),
        version = row.version,
        id = event.id,
        action = event.action,
        params = quoted(&event.params.to_string()),
        payload = quoted(&event.payload.to_string()),
    )
}

/// Quotes a text as a literal of the default SQL mode, in which a backslash escapes.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn no_text_can_end_its_literal() {
        assert_eq!(quoted("o'hara \\' or 1"), "'o''hara \\\\'' or 1'");
    }
}
