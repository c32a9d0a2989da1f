//! How the rows of one table are spread over the shards.

use std::error::Error as StdError;
use std::marker::PhantomData;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::ShardError;
use crate::domain::{Entity, EntityId, RowReader, ShardIdentifier, Value, shard_of};

/// How the rows of a `T` are spread over the shards.
///
/// Without one, rows with a [`ShardedId`](crate::domain::ShardedId) are where their id says
/// and all others on the default shard. Where something else holds, say so once, to the
/// registry:
///
/// ```
/// # use ekbatan_core::domain::*;
/// # use ekbatan_core::shard::*;
/// # use ekbatan_macros::{Entity, State};
/// # #[derive(Debug, Clone, State)] pub enum Life { Active }
/// # #[derive(Debug, Clone, Entity)]
/// # #[entity(table = "orders")]
/// # pub struct Order { pub id: Id<Order>, pub country: String, pub state: Life }
/// # fn shards(databases: Databases) -> Databases {
/// let east = ShardIdentifier::new(1, 0).unwrap();
/// databases.with_sharding(Sharding::by_value(move |order: &Order| match order.country.as_str() {
///     "PL" | "EE" => east,
///     _ => ShardIdentifier::DEFAULT,
/// }))
/// # }
/// ```
///
/// What decides over a row must never change for as long as the row lives: a row does not
/// move, and one that is looked for on another shard is not found.
pub struct Sharding<T: Entity> {
    rule: Rule<T>,
    lookup: Option<Lookup<T>>,
}

type LookupError = Box<dyn StdError + Send + Sync>;
type Lookup<T> = Arc<
    dyn Fn(<T as Entity>::Id) -> BoxFuture<'static, Result<Option<ShardIdentifier>, LookupError>>
        + Send
        + Sync,
>;

enum Rule<T: Entity> {
    Default,
    Embedded,
    ById(Box<dyn Fn(T::Id) -> ShardIdentifier + Send + Sync>),
    ByValue(Box<dyn Fn(&T) -> ShardIdentifier + Send + Sync>),
}

impl<T: Entity> Sharding<T> {
    /// Every row is on the default shard, whatever its id.
    pub fn none() -> Self {
        Self::of(Rule::Default)
    }

    /// The id's own bits decide, also those of a plain [`Id`](crate::domain::Id). A UUID that
    /// is not of version 7 has no such bits; its row is on the default shard.
    pub fn embedded() -> Self {
        Self::of(Rule::Embedded)
    }

    /// The id decides, by a rule of the application's own.
    pub fn by_id(rule: impl Fn(T::Id) -> ShardIdentifier + Send + Sync + 'static) -> Self {
        Self::of(Rule::ById(Box::new(rule)))
    }

    /// The value decides. Reads by id are then refused, unless there is
    /// [a lookup](Self::with_lookup); reads by condition ask every shard.
    pub fn by_value(rule: impl Fn(&T) -> ShardIdentifier + Send + Sync + 'static) -> Self {
        Self::of(Rule::ByValue(Box::new(rule)))
    }

    /// Where reads by id find out about the shard: a directory, a cache. `None` means that
    /// there is no such row.
    #[must_use]
    pub fn with_lookup<F, E>(mut self, lookup: impl Fn(T::Id) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Option<ShardIdentifier>, E>> + Send + 'static,
        E: Into<LookupError>,
    {
        self.lookup = Some(Arc::new(move |id| {
            let asked = lookup(id);
            async move { asked.await.map_err(Into::into) }.boxed()
        }));
        self
    }

    fn of(rule: Rule<T>) -> Self {
        Self { rule, lookup: None }
    }
}

/// What an id tells about its row's shard.
pub(crate) enum Place {
    /// The default shard.
    Default,
    /// This shard.
    On(ShardIdentifier),
    /// Whatever the application's lookup answers.
    Ask(BoxFuture<'static, Result<Option<ShardIdentifier>, ShardError>>),
}

/// A [`Sharding`] whose type was forgotten.
pub(crate) trait Placement: Send + Sync {
    /// Where the row with this id is.
    fn of_id(&self, id: Uuid) -> Result<Place, ShardError>;

    /// Where this row is written.
    fn of_row(&self, id: Uuid, values: &[Value]) -> Result<Place, ShardError>;

    /// Whether a read by condition must ask more than the default shard.
    fn spreads(&self) -> bool;
}

pub(super) fn erase<T: Entity>(sharding: Sharding<T>) -> Arc<dyn Placement> {
    Arc::new(Typed { sharding, of: PhantomData })
}

struct Typed<T: Entity> {
    sharding: Sharding<T>,
    of: PhantomData<fn() -> T>,
}

impl<T: Entity> Placement for Typed<T> {
    fn of_id(&self, id: Uuid) -> Result<Place, ShardError> {
        let typed = T::Id::from_uuid(id);
        if let Some(lookup) = &self.sharding.lookup {
            let asked = lookup(typed);
            let model = T::TABLE.model;
            let answer = async move {
                asked.await.map_err(|source| ShardError::Lookup { model, id, source })
            };
            return Ok(Place::Ask(answer.boxed()));
        }
        match &self.sharding.rule {
            Rule::Default => Ok(Place::Default),
            Rule::Embedded => Ok(shard_of(id).map_or(Place::Default, Place::On)),
            Rule::ById(rule) => Ok(Place::On(rule(typed))),
            Rule::ByValue(_) => Err(ShardError::NotById { model: T::TABLE.model }),
        }
    }

    fn of_row(&self, id: Uuid, values: &[Value]) -> Result<Place, ShardError> {
        match &self.sharding.rule {
            Rule::Default => Ok(Place::Default),
            Rule::Embedded => Ok(shard_of(id).map_or(Place::Default, Place::On)),
            Rule::ById(rule) => Ok(Place::On(rule(T::Id::from_uuid(id)))),
            Rule::ByValue(rule) => {
                let mut values = values.to_vec();
                let value =
                    T::from_row(&mut RowReader::new(T::TABLE, &mut values)).map_err(|source| {
                        ShardError::Placement { model: T::TABLE.model, id, source }
                    })?;
                Ok(Place::On(rule(&value)))
            }
        }
    }

    fn spreads(&self) -> bool {
        !matches!(self.sharding.rule, Rule::Default)
    }
}
