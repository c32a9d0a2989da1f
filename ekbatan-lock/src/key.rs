//! What a lock is about.

use std::fmt;
use std::sync::Arc;

use ekbatan_core::domain::{Id, ShardIdentifier, ShardedId};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// The longest key that is stored as it is: what every database can have in an index.
const MAX_STORED: usize = 255;

/// How far a lock reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum LockLevel {
    /// One zone, the one that the configuration names: another zone has a lock of its own.
    #[default]
    Zone,
    /// Every zone.
    Global,
}

/// The key of a lock: a name, and most often whose it is.
///
/// ```
/// use ekbatan_lock::{LockKey, LockLevel, lock_key};
///
/// let report = LockKey::named("nightly-report");
/// let wallet = lock_key!("wallet", 17);
/// assert_eq!(wallet.id(), "wallet:17");
/// assert_eq!(wallet.level(LockLevel::Global).stored("eu"), "XDC#wallet:17");
/// assert_eq!(report.stored("eu"), "DC#eu#nightly-report");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockKey {
    id: Arc<str>,
    level: LockLevel,
    shard: Option<ShardIdentifier>,
}

/// What a key can be made of beside its name.
pub trait KeyPart {
    /// The part as it stands in the key.
    fn text(&self) -> String;

    /// The shard whose locks the key belongs to, where the part says so.
    fn shard(&self) -> Option<ShardIdentifier> {
        None
    }
}

impl LockKey {
    /// The key of the one thing that has this name.
    pub fn named(name: &str) -> Self {
        Self { id: name.into(), level: LockLevel::default(), shard: None }
    }

    /// The key of one of many things: `LockKey::of("wallet", id)`.
    pub fn of(name: &str, part: impl KeyPart) -> Self {
        Self {
            id: format!("{name}:{}", part.text()).into(),
            level: LockLevel::default(),
            shard: part.shard(),
        }
    }

    /// The same key at another level.
    #[must_use]
    pub fn level(mut self, level: LockLevel) -> Self {
        self.level = level;
        self
    }

    /// The same key among the locks of a shard, where no part of it says which.
    #[must_use]
    pub fn on_shard(mut self, shard: ShardIdentifier) -> Self {
        self.shard = Some(shard);
        self
    }

    /// The key without its level.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// How far the lock reaches.
    pub fn reach(&self) -> LockLevel {
        self.level
    }

    /// The shard whose locks the key belongs to, if it was made from an id that carries one.
    pub fn shard(&self) -> Option<ShardIdentifier> {
        self.shard
    }

    /// The key as a backend of this zone stores it. One that is too long for an index ends in
    /// its digest instead.
    pub fn stored(&self, zone: &str) -> String {
        let full = match self.level {
            LockLevel::Zone => format!("DC#{zone}#{}", self.id),
            LockLevel::Global => format!("XDC#{}", self.id),
        };
        if full.len() <= MAX_STORED {
            return full;
        }
        let digest: String =
            Sha256::digest(full.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        let kept = full.floor_char_boundary(MAX_STORED - digest.len() - 1);
        format!("{}#{digest}", &full[..kept])
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)
    }
}

/// `lock_key!("wallet", id)`, or `lock_key!("nightly-report")`.
#[macro_export]
macro_rules! lock_key {
    ($name:expr) => {
        $crate::LockKey::named($name)
    };
    ($name:expr, $part:expr) => {
        $crate::LockKey::of($name, $part)
    };
}

macro_rules! parts {
    ($($ty:ty),*) => {$(
        impl KeyPart for $ty {
            fn text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

parts!(&str, String, Uuid, i32, i64, u32, u64, usize);

impl<P: KeyPart> KeyPart for &P {
    fn text(&self) -> String {
        (*self).text()
    }

    fn shard(&self) -> Option<ShardIdentifier> {
        (*self).shard()
    }
}

impl<M> KeyPart for Id<M> {
    fn text(&self) -> String {
        self.to_string()
    }
}

impl<M> KeyPart for ShardedId<M> {
    fn text(&self) -> String {
        self.to_string()
    }

    fn shard(&self) -> Option<ShardIdentifier> {
        ShardedId::shard(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Wallet;

    #[test]
    fn a_key_of_a_sharded_id_belongs_to_its_shard() {
        let shard = ShardIdentifier::new(3, 1).unwrap();
        let id: ShardedId<Wallet> = ShardedId::new(shard);
        let key = lock_key!("wallet", id);
        assert_eq!((key.shard(), key.id()), (Some(shard), &*format!("wallet:{id}")));
        assert_eq!(lock_key!("wallet", Id::<Wallet>::new()).shard(), None);
    }

    #[test]
    fn levels_and_zones_keep_keys_apart() {
        let key = LockKey::named("a");
        assert_ne!(key.stored("eu"), key.stored("us"));
        assert_ne!(key.stored("eu"), key.clone().level(LockLevel::Global).stored("eu"));
        assert_eq!(
            key.clone().level(LockLevel::Global).stored("eu"),
            key.level(LockLevel::Global).stored("us")
        );
    }

    #[test]
    fn keys_of_any_length_stay_apart_and_fit_an_index() {
        let long = "ż".repeat(400);
        let (a, b) = (LockKey::named(&format!("{long}a")), LockKey::named(&format!("{long}b")));
        assert_ne!(a.stored("eu"), b.stored("eu"));
        assert!(a.stored("eu").len() <= MAX_STORED);
        let exact = LockKey::named(&"x".repeat(MAX_STORED - "DC#eu#".len()));
        assert_eq!(exact.stored("eu").len(), MAX_STORED);
        assert!(exact.stored("eu").ends_with('x'));
    }
}
