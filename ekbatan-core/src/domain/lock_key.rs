//! The key of a lock, which is also what concurrent calls of an action contend for.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{Id, ShardIdentifier, ShardedId};

/// The longest key that is stored unchanged. Every supported database can index this length.
const MAX_STORED: usize = 255;

/// The zones in which a lock excludes other holders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum LockLevel {
    /// One zone, the one that the configuration names. Each zone has its own lock.
    #[default]
    Zone,
    /// All zones.
    Global,
}

/// The key of a lock: a name, and for one of many things also its id.
///
/// ```
/// use ekbatan_core::domain::{LockKey, LockLevel};
/// use ekbatan_core::lock_key;
///
/// let report = LockKey::named("nightly-report");
/// let wallet = lock_key!("wallet", 17);
/// assert_eq!(wallet.id(), "wallet:17");
/// assert_eq!(wallet.at_level(LockLevel::Global).stored("eu"), "XDC#wallet:17");
/// assert_eq!(report.stored("eu"), "DC#eu#nightly-report");
/// ```
///
/// An action's `contention_keys` are `LockKey`s too. Calls with different keys never wait for
/// each other. A key that covers too few rows is safe: calls then conflict on row versions
/// and are retried.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockKey {
    id: Arc<str>,
    level: LockLevel,
    shard: Option<ShardIdentifier>,
}

/// A value that can be part of a [`LockKey`], after its name.
pub trait KeyPart {
    /// The part as it is written into the key.
    fn text(&self) -> String;

    /// The shard that the key belongs to, if the part carries one.
    fn shard(&self) -> Option<ShardIdentifier> {
        None
    }
}

impl LockKey {
    /// The key of the only thing that has this name.
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
    pub fn at_level(mut self, level: LockLevel) -> Self {
        self.level = level;
        self
    }

    /// The same key on this shard. Needed only if the key's part carries no shard.
    #[must_use]
    pub fn on_shard(mut self, shard: ShardIdentifier) -> Self {
        self.shard = Some(shard);
        self
    }

    /// The key without its level and shard.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The level: one zone, or all of them.
    pub fn level(&self) -> LockLevel {
        self.level
    }

    /// The shard that the key belongs to, if it is known.
    pub fn shard(&self) -> Option<ShardIdentifier> {
        self.shard
    }

    /// The key as a backend in this zone stores it. A key that is too long for an index, or holds
    /// the character 0, which not every backend stores, is cut and ends with its digest.
    pub fn stored(&self, zone: &str) -> String {
        let full = match self.level {
            LockLevel::Zone => format!("DC#{zone}#{}", self.id),
            LockLevel::Global => format!("XDC#{}", self.id),
        };
        let nul = full.find('\0');
        if full.len() <= MAX_STORED && nul.is_none() {
            return full;
        }
        let digest: String =
            Sha256::digest(full.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        let kept = full.floor_char_boundary(MAX_STORED - digest.len() - 1);
        format!("{}#{digest}", &full[..nul.map_or(kept, |nul| nul.min(kept))])
    }

    /// A stored key without its level and zone, for messages: users gave neither.
    pub(crate) fn shown(stored: &str) -> &str {
        let of_zone = || stored.strip_prefix("DC#")?.split_once('#').map(|(_, id)| id);
        stored.strip_prefix("XDC#").or_else(of_zone).unwrap_or(stored)
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)
    }
}

/// Makes a [`LockKey`](crate::domain::LockKey): `lock_key!("wallet", id)` for one of many
/// things, `lock_key!("nightly-report")` for the only one.
#[macro_export]
macro_rules! lock_key {
    ($name:expr) => {
        $crate::domain::LockKey::named($name)
    };
    ($name:expr, $part:expr) => {
        $crate::domain::LockKey::of($name, $part)
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

parts!(str, String, Uuid, i32, i64, u32, u64, usize);

impl<P: KeyPart + ?Sized> KeyPart for &P {
    fn text(&self) -> String {
        (**self).text()
    }

    fn shard(&self) -> Option<ShardIdentifier> {
        (**self).shard()
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
        assert_ne!(key.stored("eu"), key.clone().at_level(LockLevel::Global).stored("eu"));
        assert_eq!(
            key.clone().at_level(LockLevel::Global).stored("eu"),
            key.at_level(LockLevel::Global).stored("us")
        );
    }

    #[test]
    fn keys_of_any_length_stay_apart_and_fit_an_index() {
        let long = "ż".repeat(400);
        let (a, b) = (LockKey::named(&format!("{long}a")), LockKey::named(&format!("{long}b")));
        assert_ne!(a.stored("eu"), b.stored("eu"));
        assert!(a.stored("eu").len() <= MAX_STORED);
        let [b, c] = ["a\0b", "a\0c"].map(|key| LockKey::named(key).stored("eu"));
        assert!(b != c && b.starts_with("DC#eu#a#") && !b.contains('\0'), "{b}");
        let shown = ["DC#eu#a#1", "XDC#a#1", "DC#eu", "a#1"].map(LockKey::shown);
        assert_eq!(shown, ["a#1", "a#1", "DC#eu", "a#1"]);
        let exact = LockKey::named(&"x".repeat(MAX_STORED - "DC#eu#".len()));
        assert_eq!(exact.stored("eu").len(), MAX_STORED);
        assert!(exact.stored("eu").ends_with('x'));
    }
}
