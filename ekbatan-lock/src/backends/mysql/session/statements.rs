//! The names of locks, and the SQL of a session.
//!
//! Invariants: each text is one round trip. The session that has a lock writes its row; others
//! only mark the row as wanted. Statements touch several rows in the order of their keys, so
//! that sessions cannot deadlock.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::backends::mysql::cleaning::RowCleaner;
use crate::backends::mysql::sql::{MILLIS, NEVER, begins_with, text, texts, uuid};
use crate::backends::mysql::tables::{SESSIONS, full_name};

/// The table, and the names of locks, which are global to a server.
#[derive(Clone)]
pub(super) struct SessionStatements {
    eventlog: String,
    table: String,
    /// Distinguishes the marks of this process from those of others.
    process: Uuid,
}

impl SessionStatements {
    pub(super) fn new(eventlog: &str) -> Self {
        Self {
            eventlog: eventlog.to_owned(),
            table: full_name(eventlog, &SESSIONS),
            process: Uuid::new_v4(),
        }
    }

    /// The name of a key's lock. It is in lower case, because servers ignore case in lock
    /// names, and shorter than their limit of 64 characters.
    pub(super) fn lock(&self, key: &str) -> String {
        let database = self.eventlog.to_lowercase();
        let digest = Sha256::new().chain_update(database).chain_update([0]).chain_update(key);
        let mut name = String::from("ekbatan-lock-");
        for byte in &digest.finalize()[..24] {
            // Writing to a String does not fail.
            let _ = write!(name, "{byte:02x}");
        }
        name
    }

    /// Deletes the rows of locks that nobody has used for long.
    pub(super) fn cleaner(&self) -> RowCleaner {
        RowCleaner::new(&self.table, "IS_FREE_LOCK(lock_name)")
    }

    /// Tries to take all locks, counts a token for each lock that was taken, and selects the
    /// results. Rows are written in the order of keys.
    pub(super) fn take(&self, asked: &BTreeMap<String, String>) -> String {
        let (table, me) = (&self.table, uuid(self.process));
        let (mut tries, mut rows, mut answers) = (String::new(), String::new(), String::new());
        for (n, (key, holder)) in asked.iter().enumerate() {
            let (comma, union) = if n == 0 { ("", "") } else { (", ", " UNION ALL ") };
            let (lock, key, holder) = (self.lock(key), text(key), text(holder));
            // Writing to a String does not fail.
            let _ = write!(tries, "{comma}@g{n} = GET_LOCK('{lock}', 0)");
            let _ = write!(
                rows,
                "{union}SELECT @g{n} AS got, {key} AS asked_key, '{lock}' AS asked_lock, {holder} AS asked_by"
            );
            let _ = write!(answers, ", @g{n}");
        }
        let keys = texts(asked.keys());
        format!(
            "SET {tries}; \
             INSERT INTO {table} (lock_key, lock_name, session, holder, token, since, wanted_by, \
                 wanted_until) \
             SELECT asked_key, asked_lock, CONNECTION_ID(), asked_by, {MILLIS}, \
                 UTC_TIMESTAMP(6), {me}, {NEVER} \
             FROM ({rows}) AS asked WHERE got = 1 \
             ON DUPLICATE KEY UPDATE session = CONNECTION_ID(), holder = asked.asked_by, \
                 token = GREATEST(token + 1, {MILLIS}), since = UTC_TIMESTAMP(6), \
                 wanted_until = IF(wanted_by = {me}, {NEVER}, wanted_until); \
             SELECT CONNECTION_ID(){answers}; \
             SELECT lock_key, token FROM {table} \
             WHERE session = CONNECTION_ID() AND lock_key IN ({keys})"
        )
    }

    pub(super) fn unlock<'k>(&self, keys: impl IntoIterator<Item = &'k str>) -> String {
        let calls = keys.into_iter().map(|key| format!("RELEASE_LOCK('{}')", self.lock(key)));
        calls.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn release(&self, keys: &[String]) -> String {
        let keys = || keys.iter().map(String::as_str);
        format!(
            "SELECT {}; SELECT lock_key FROM {} WHERE lock_key IN ({}) \
             AND wanted_until > UTC_TIMESTAMP(6) AND wanted_by <> {}",
            self.unlock(keys()),
            self.table,
            texts(keys()),
            uuid(self.process)
        )
    }

    /// Marks keys as wanted, unless a mark that lasts half as long is there.
    pub(super) fn want(&self, keys: &[String], lasts: Duration) -> String {
        format!(
            "UPDATE {} SET wanted_by = {}, \
                 wanted_until = UTC_TIMESTAMP(6) + INTERVAL {} MICROSECOND \
             WHERE lock_key IN ({}) \
                 AND wanted_until <= UTC_TIMESTAMP(6) + INTERVAL {} MICROSECOND",
            self.table,
            uuid(self.process),
            lasts.as_micros(),
            texts(keys),
            lasts.as_micros() / 2
        )
    }

    /// Removes the marks of keys that no other session has taken since: those are marked for its holder.
    pub(super) fn unmark(&self, keys: &[String]) -> String {
        let (table, keys) = (&self.table, texts(keys));
        format!(
            "UPDATE {table} SET wanted_until = {NEVER} WHERE lock_key IN ({keys}) AND session = CONNECTION_ID()"
        )
    }

    /// Selects the keys, their tokens and whether their locks are free, and marks them as wanted.
    pub(super) fn look(&self, keys: &[String], lasts: Duration) -> String {
        format!(
            "SELECT lock_key, token, IFNULL(IS_FREE_LOCK(lock_name), 1) \
             FROM {} WHERE lock_key IN ({}); {}",
            self.table,
            texts(keys),
            self.want(keys, lasts)
        )
    }

    /// Selects the rows whose locks are held, with the sessions that hold them.
    pub(super) fn list(&self, prefixes: &[String], most: usize) -> String {
        format!(
            "SELECT used, holder, token, TIMESTAMPDIFF(MICROSECOND, since, UTC_TIMESTAMP(6)), \
                 session, lock_key \
             FROM (SELECT *, IS_USED_LOCK(lock_name) AS used FROM {} WHERE {}) l \
             WHERE used IS NOT NULL ORDER BY lock_key LIMIT {most}",
            self.table,
            begins_with(prefixes)
        )
    }

    /// Selects the session that has the lock, and the row of the one that took it last.
    pub(super) fn holder(&self, key: &str) -> String {
        format!(
            "SELECT IS_USED_LOCK('{}'); SELECT session, holder, token, \
                 TIMESTAMPDIFF(MICROSECOND, since, UTC_TIMESTAMP(6)) \
             FROM {} WHERE lock_key = {}",
            self.lock(key),
            self.table,
            text(key)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_names_are_valid_and_distinct_on_every_server() {
        let names = SessionStatements::new("Shop_Log");
        let name = names.lock("DC#eu#wallet:17");
        assert!(name.len() <= 64 && name == name.to_lowercase(), "{name}");
        // The name must not change: processes of different versions exclude each other.
        assert_eq!(name, "ekbatan-lock-aa3f0c178a673f08692dbe9846513a7e58ce1f84a45c08ed");
        assert_eq!(name, SessionStatements::new("shop_log").lock("DC#eu#wallet:17"));
        assert_ne!(name, names.lock("DC#eu#Wallet:17"));
        assert_ne!(name, SessionStatements::new("other").lock("DC#eu#wallet:17"));
    }
}
