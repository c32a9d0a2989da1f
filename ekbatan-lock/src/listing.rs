//! The keys that are held, for operators.

use crate::{Holder, LockKey};

/// A key that is held, and its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldKey {
    /// The key, by which the lock can be [inspected](crate::KeyedLockProvider::inspect) and
    /// [ended](crate::KeyedLockProvider::force_release). If the key is stored cut,
    /// because it is long or holds the character 0, this is the cut one, which stands for the same lock.
    pub key: LockKey,
    /// Its holder.
    pub holder: Holder,
}

/// The result of [`KeyedLockProvider::list`](crate::KeyedLockProvider::list).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct HeldKeys {
    /// The keys that were found, in order.
    pub keys: Vec<HeldKey>,
    /// Whether more keys are held than the caller asked for. The server then chooses which of them
    /// it names.
    pub more: bool,
}
