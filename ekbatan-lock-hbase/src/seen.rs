//! Rows as they were seen last. A change that begins with one needs no look before it; if the row
//! has changed since, the server says so and the change begins anew.
//!
//! Invariant: the number of rows is bounded.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::row::LockRow;

/// Number of rows after which the older half is forgotten, all in all twice as many.
const ROWS: usize = 4_096;

#[derive(Default)]
pub(crate) struct SeenRows {
    rows: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    young: HashMap<String, LockRow>,
    old: HashMap<String, LockRow>,
}

impl SeenRows {
    fn rows(&self) -> MutexGuard<'_, Generations> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, key: &str) -> Option<LockRow> {
        let rows = self.rows();
        rows.young.get(key).or_else(|| rows.old.get(key)).cloned()
    }

    pub(crate) fn forget(&self, key: &str) {
        let mut rows = self.rows();
        rows.young.remove(key);
        rows.old.remove(key);
    }

    pub(crate) fn note(&self, key: &str, row: LockRow) {
        let mut rows = self.rows();
        rows.young.insert(key.to_owned(), row);
        if rows.young.len() >= ROWS {
            rows.old = std::mem::take(&mut rows.young);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_rows_are_forgotten() {
        let seen = SeenRows::default();
        for n in 0..ROWS * 3 {
            seen.note(&n.to_string(), LockRow::default());
            seen.note("again", LockRow::default());
        }
        assert!(seen.get("again").is_some() && seen.get("0").is_none());
        assert!(seen.get(&(ROWS * 3 - 1).to_string()).is_some());
        let rows = seen.rows();
        assert!(rows.young.len() <= ROWS && rows.old.len() <= ROWS);
    }
}
