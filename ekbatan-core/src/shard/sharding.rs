//! The placement rule for the rows of one table.

use std::error::Error as StdError;
use std::marker::PhantomData;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::ShardError;
use crate::domain::{Entity, EntityId, RowReader, ShardIdentifier, Value, shard_of};

/// The placement rule for the rows of `T`.
///
/// By default a row with a [`ShardedId`](crate::domain::ShardedId) is on the shard of its id, and
/// every other row is on the default shard. Register another rule once:
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
/// The value that places a row must never change while the row exists: rows do not move, and a
/// read on another shard does not find them.
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
    /// Every row is on the default shard.
    pub fn none() -> Self {
        Self::of(Rule::Default)
    }

    /// The bits of the id decide, also of a plain [`Id`](crate::domain::Id). A UUID of another
    /// version than 7 has no such bits; its row is on the default shard. The ids must have been made
    /// with a shard: in those of [`Id::new`](crate::domain::Id::new) the bits are random.
    pub fn embedded() -> Self {
        Self::of(Rule::Embedded)
    }

    /// The application's rule for ids decides.
    pub fn by_id(rule: impl Fn(T::Id) -> ShardIdentifier + Send + Sync + 'static) -> Self {
        Self::of(Rule::ById(Box::new(rule)))
    }

    /// The application's rule for values decides. Reads by id need
    /// [a lookup](Self::with_lookup); reads by condition query every shard.
    pub fn by_value(rule: impl Fn(&T) -> ShardIdentifier + Send + Sync + 'static) -> Self {
        Self::of(Rule::ByValue(Box::new(rule)))
    }

    /// Adds a lookup from ids to shards for reads by id, such as a directory or a cache. `None` from
    /// the lookup means that there is no such row.
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

/// The shard of a row, as far as it is known from the id or the value.
pub(crate) enum Place {
    /// The default shard.
    Default,
    /// This shard, which a rule or a lookup names.
    On(ShardIdentifier),
    /// The shard that the id names. The id of a row that is read may come from a client.
    InId(ShardIdentifier),
    /// The result of the application's lookup.
    Ask(BoxFuture<'static, Result<Option<ShardIdentifier>, ShardError>>),
}

/// A type-erased [`Sharding`].
pub(crate) trait Placement: Send + Sync {
    /// The place of the row with this id.
    fn of_id(&self, id: Uuid) -> Result<Place, ShardError>;

    /// The place where this row is written.
    fn of_row(&self, id: Uuid, values: &[Value]) -> Result<Place, ShardError>;

    /// Whether a read by condition must query more than the default shard.
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
            Rule::Embedded => Ok(shard_of(id).map_or(Place::Default, Place::InId)),
            Rule::ById(rule) => Ok(Place::On(rule(typed))),
            Rule::ByValue(_) => Err(ShardError::NotById { model: T::TABLE.model }),
        }
    }

    fn of_row(&self, id: Uuid, values: &[Value]) -> Result<Place, ShardError> {
        match &self.sharding.rule {
            Rule::Default => Ok(Place::Default),
            Rule::Embedded => Ok(shard_of(id).map_or(Place::Default, Place::InId)),
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

impl<T: Entity> std::fmt::Debug for Sharding<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rule = match self.rule {
            Rule::Default => "default",
            Rule::Embedded => "embedded",
            Rule::ById(_) => "by id",
            Rule::ByValue(_) => "by value",
        };
        f.debug_struct("Sharding").field("rule", &rule).finish_non_exhaustive()
    }
}
