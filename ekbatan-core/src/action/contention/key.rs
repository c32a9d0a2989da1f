//! What calls contend for.

use std::fmt;

use uuid::Uuid;

use crate::domain::{Id, ShardIdentifier, ShardedId};

/// What a call contends for, most often one row:
///
/// ```
/// use ekbatan_core::action::ContentionKey;
///
/// let key = ContentionKey::new("wallet", 17);
/// assert_eq!(key.name(), "wallet:17");
/// ```
///
/// Calls with different keys are never kept from each other, and a key that says too little
/// costs nothing but conflicts: versions decide in the end.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentionKey {
    name: String,
    shard: Option<ShardIdentifier>,
}

/// What a [`ContentionKey`] can be made of beside its name.
pub trait ContentionPart {
    /// The part as it stands in the key.
    fn text(&self) -> String;

    /// The shard of what is contended for, where the part says so.
    fn shard(&self) -> Option<ShardIdentifier> {
        None
    }
}

impl ContentionKey {
    /// One of many things of a kind: `ContentionKey::new("wallet", params.wallet)`.
    pub fn new(kind: &str, part: impl ContentionPart) -> Self {
        Self { name: format!("{kind}:{}", part.text()), shard: part.shard() }
    }

    /// The one thing that has this name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), shard: None }
    }

    /// The key as text.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The shard of what is contended for, if the key was made from an id that carries one.
    pub fn shard(&self) -> Option<ShardIdentifier> {
        self.shard
    }
}

impl fmt::Display for ContentionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

macro_rules! parts {
    ($($ty:ty),*) => {$(
        impl ContentionPart for $ty {
            fn text(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

parts!(str, String, Uuid, i32, i64, u32, u64, usize);

impl<P: ContentionPart + ?Sized> ContentionPart for &P {
    fn text(&self) -> String {
        (**self).text()
    }

    fn shard(&self) -> Option<ShardIdentifier> {
        (**self).shard()
    }
}

impl<M> ContentionPart for Id<M> {
    fn text(&self) -> String {
        self.to_string()
    }
}

impl<M> ContentionPart for ShardedId<M> {
    fn text(&self) -> String {
        self.to_string()
    }

    fn shard(&self) -> Option<ShardIdentifier> {
        ShardedId::shard(self)
    }
}
