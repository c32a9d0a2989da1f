//! What a test does to the sessions of the framework from a session of its own.

use std::collections::HashSet;
use std::time::Duration;

use ekbatan::prelude::*;
use sqlx::Row as _;
use support::PlainConnection;
use support::wallet::Wallet;

/// Locks the row of a wallet until the end of the transaction.
pub async fn lock_wallet(connection: &mut PlainConnection, wallet: Id<Wallet>) {
    connection.execute(&format!("SELECT 1 FROM wallets WHERE id = '{wallet}' FOR UPDATE")).await;
}

/// Keeps the commits that change a wallet within the server, while it is closed. No lock timeout
/// ends them: a trigger waits.
pub struct Gate {
    connection: PlainConnection,
    unlock: String,
}

impl Gate {
    /// A closed gate, and the only one of its wallet.
    pub async fn closed(url: &str, wallet: Id<Wallet>) -> Self {
        let mut connection = PlainConnection::connect(url).await;
        let name = wallet.to_string().replace('-', "");
        let (gate, lock, unlock);
        if matches!(connection, PlainConnection::MySql(_)) {
            lock = format!("SELECT GET_LOCK('{name}', 600)");
            unlock = format!("SELECT RELEASE_LOCK('{name}')");
            // Without the error, a commit would pass when its client goes away.
            gate = format!(
                "CREATE TRIGGER gate_{name} BEFORE UPDATE ON wallets FOR EACH ROW \
                 IF NEW.id = '{wallet}' THEN IF coalesce(GET_LOCK('{name}', 600), 0) = 0 THEN \
                 SIGNAL SQLSTATE '45000'; END IF; END IF"
            );
        } else {
            let key = format!("hashtext('{name}')");
            lock = format!("SELECT pg_advisory_lock({key})");
            unlock = format!("SELECT pg_advisory_unlock({key})");
            gate = format!(
                "CREATE FUNCTION gate_{name}() RETURNS trigger LANGUAGE plpgsql \
                 SET lock_timeout = 0 AS $$ BEGIN \
                 PERFORM pg_advisory_xact_lock({key}); RETURN NEW; END $$; \
                 CREATE TRIGGER gate_{name} BEFORE UPDATE ON wallets FOR EACH ROW \
                 WHEN (NEW.id = '{wallet}') EXECUTE FUNCTION gate_{name}()"
            );
        }
        connection.execute(&lock).await;
        connection.execute(&gate).await;
        Self { connection, unlock }
    }

    pub async fn open(mut self) {
        self.connection.execute(&self.unlock).await;
    }
}

/// The session of a transaction in the status of InnoDB.
fn session_of(transaction: &str) -> Option<String> {
    let (_, session) = transaction.split_once("thread id ")?;
    Some(session.split(',').next()?.trim().to_owned())
}

/// A session that observes the other sessions of its database.
pub struct Observer(PlainConnection);

impl Observer {
    pub async fn connect(url: &str) -> Self {
        Self(PlainConnection::connect(url).await)
    }

    /// Kills every other session.
    pub async fn kill_other_sessions(&mut self) {
        let others = match &self.0 {
            PlainConnection::MySql(_) => {
                "FROM information_schema.processlist \
                 WHERE db = database() AND id <> connection_id()"
            }
            _ => {
                "FROM pg_stat_activity \
                 WHERE datname = current_database() AND pid <> pg_backend_pid()"
            }
        };
        if matches!(self.0, PlainConnection::MySql(_)) {
            for session in self.ids("id", others).await {
                // The server refuses to kill a session that has ended since.
                let kill = format!("KILL {session}");
                let PlainConnection::MySql(connection) = &mut self.0 else { unreachable!() };
                let _ = sqlx::raw_sql(sqlx::AssertSqlSafe(kill)).execute(connection).await;
            }
        } else {
            self.ids("pg_terminate_backend(pid)", others).await;
        }
    }

    /// Waits until exactly one session waits for the lock of a row. Returns the id of that session.
    pub async fn wait_for_blocked(&mut self) -> String {
        loop {
            if let [session] = &self.blocked().await[..] {
                return session.clone();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until two sessions wait for the locks of rows.
    pub async fn wait_for_two_blocked(&mut self) {
        while self.blocked().await.len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until another session than `before` waits for the lock of a row. Panics if `before`
    /// then waits for one, too: it could still commit.
    pub async fn wait_for_successor_of(&mut self, before: &str) {
        loop {
            let blocked = self.blocked().await;
            if blocked.iter().any(|session| session != before) {
                let both = blocked.iter().any(|session| session == before);
                assert!(!both, "the lane commits again while its old session {before} still does");
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The sessions that wait for the lock of a row.
    async fn blocked(&mut self) -> Vec<String> {
        if !matches!(self.0, PlainConnection::MySql(_)) {
            let waiting = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
            return self.ids("pid", waiting).await;
        }
        let busy = "FROM information_schema.processlist \
                    WHERE db = database() AND command = 'Query' AND id <> connection_id()";
        let mut sessions = self.0.select(&["id", "state"], busy).await;
        if !sessions.is_empty() {
            let waiting = self.waiting_for_rows().await;
            // A gate waits for a lock of its user.
            sessions.retain(|session| {
                session[1].as_deref() == Some("User lock")
                    || session[0].as_ref().is_some_and(|id| waiting.contains(id))
            });
        }
        sessions.into_iter().filter_map(|mut session| session.remove(0)).collect()
    }

    /// The sessions of all databases that wait for the lock of a row. The table `innodb_trx` would
    /// name them, too, but from a copy that the servers do not renew while somebody reads it.
    async fn waiting_for_rows(&mut self) -> HashSet<String> {
        let PlainConnection::MySql(connection) = &mut self.0 else { unreachable!() };
        let status = sqlx::raw_sql("SHOW ENGINE INNODB STATUS").fetch_one(connection).await;
        let status: String = status.unwrap().get_unchecked(2);
        // The last deadlock stands before the transactions that run.
        let transactions = status.split("---TRANSACTION").skip(1);
        let waiting = transactions.filter(|transaction| transaction.contains("LOCK WAIT"));
        waiting.filter_map(session_of).collect()
    }

    async fn ids(&mut self, column: &str, tail: &str) -> Vec<String> {
        let rows = self.0.select(&[column], tail).await;
        rows.into_iter().filter_map(|mut row| row.remove(0)).collect()
    }
}
