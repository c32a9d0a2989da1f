//! The transactions that others have open, as a database lists them.

/// A transaction of another session that has begun and not ended, and that can write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunningTransaction {
    /// What identifies it. It is the same transaction as one of another list if they have one in common.
    pub(crate) keys: Vec<String>,
    /// Whether it has written something.
    pub(crate) has_written: bool,
    /// Whether it belongs to no session any more: it was prepared, and somebody ends it later.
    pub(crate) is_detached: bool,
    /// Who has it open, for messages.
    pub(crate) who: String,
}

impl RunningTransaction {
    /// Whether both are the same transaction.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.keys.iter().any(|key| other.keys.contains(key))
    }
}
