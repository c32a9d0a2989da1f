//! Calls that actions enqueue. The commit that enqueues a call adds a request, and the call adds its
//! effect, so the rows of both say what was committed.

use std::time::Duration;

use ekbatan::domain::New;
use ekbatan::prelude::*;
use ekbatan::repository::{Direction, PageRequest};
use serde::{Deserialize, Serialize};

use crate::accounts::{EntryState, shard};

/// How a call is enqueued, and what it does when it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, State)]
pub enum Manner {
    /// Without a key.
    Plain,
    /// Without a key. When it runs, it enqueues a plain one.
    Chained,
    /// Only if no other one with the key waits. When it runs, it serves all requests with the key.
    Unique,
    /// After the earlier ones with the key. When it runs, it counts its position among them.
    InTurn,
    /// With a key that is its own, so that it can be cancelled.
    Cancellable,
}

impl Manner {
    pub const ALL: [Self; 5] =
        [Self::Plain, Self::Chained, Self::Unique, Self::InTurn, Self::Cancellable];
}

/// A call that a commit enqueues.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "requests")]
pub struct Request {
    pub id: ShardedId<Request>,
    pub manner: Manner,
    pub call_key: String,
    /// The account or the request whose commit enqueues the call.
    pub maker: String,
    /// The version of the account that this commit makes; 0 for a request.
    pub maker_version: i64,
    /// The position among the calls of one commit.
    pub place: i64,
    pub state: RequestState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, State)]
pub enum RequestState {
    Open,
    /// A unique call with its key has run.
    Served,
    Cancelled,
}

impl RequestState {
    pub const ALL: [Self; 3] = [Self::Open, Self::Served, Self::Cancelled];
}

/// The effect of one call.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "call_effects")]
pub struct CallEffect {
    pub id: ShardedId<CallEffect>,
    pub request: String,
    pub call_key: String,
    /// One more than the greatest position that a call in turn has found; otherwise 0.
    pub position: i64,
    /// What the commit of the call found the request to be.
    pub found: RequestState,
    pub state: EntryState,
}

/// A call that a commit is to enqueue.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Wish {
    pub manner: Manner,
    pub key: String,
    pub after: Duration,
}

/// A request whose call can be cancelled.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cancellable {
    pub request: Uuid,
    pub shard: usize,
    pub key: String,
}

/// Adds the effect of a call. Nothing but the mark of the call keeps it from being added twice.
#[derive(Clone)]
pub struct Serve {
    databases: Databases,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Serving {
    pub request: Uuid,
    pub shard: usize,
    pub manner: Manner,
    pub key: String,
}

impl Serve {
    pub fn new(databases: &Databases) -> Self {
        Self { databases: databases.clone() }
    }

    /// Enqueues a call, and adds the request for it.
    pub fn enqueue(
        &self,
        ctx: &mut ActionContext<'_>,
        on: usize,
        maker: (String, i64, usize),
        wish: &Wish,
    ) -> Cancellable {
        let (maker, maker_version, place) = maker;
        let id = ctx.new_sharded_id(shard(on));
        let Wish { manner, key, after } = wish.clone();
        let request = Request {
            id,
            manner,
            call_key: key.clone(),
            maker,
            maker_version,
            place: place as i64,
            state: RequestState::Open,
        };
        let serving = Serving { request: id.uuid(), shard: on, manner, key: key.clone() };
        ctx.plan().add(New::new(request, ()));
        let call = ctx.plan().enqueue(self, serving).after(after);
        match manner {
            Manner::Plain | Manner::Chained => {}
            Manner::Unique | Manner::Cancellable => drop(call.unique(&key)),
            Manner::InTurn => drop(call.in_turn(&key)),
        }
        Cancellable { request: id.uuid(), shard: on, key }
    }

    /// Cancels a call. Whoever expects the request to be as it was finds that it is not.
    pub async fn cancel(
        &self,
        ctx: &mut ActionContext<'_>,
        cancelled: &Cancellable,
    ) -> Result<(), ReadError> {
        let request = ctx.get(ShardedId::<Request>::from_uuid(cancelled.request)).await?;
        ctx.plan().update(request.apply(|request| request.state = RequestState::Cancelled));
        ctx.plan().cancel(self, &cancelled.key);
        Ok(())
    }

    /// The greatest position of a call with this key.
    async fn last_position(
        &self,
        ctx: &ActionContext<'_>,
        serving: &Serving,
    ) -> Result<i64, ReadError> {
        let on = self.databases.shard(shard(serving.shard))?;
        let last = PageRequest::first(1)
            .filter(CallEffect::CALL_KEY.eq(&*serving.key))
            .order_by(CallEffect::POSITION, Direction::Descending);
        let last = ctx.repository::<CallEffect>().on_shard(&on).page(last).await?;
        Ok(last.rows.first().map_or(0, |effect| effect.position))
    }

    /// The requests with this key that no call has served.
    async fn open_requests(
        &self,
        ctx: &ActionContext<'_>,
        serving: &Serving,
    ) -> Result<Vec<Stored<Request>>, ReadError> {
        let on = self.databases.shard(shard(serving.shard))?;
        let open = Request::CALL_KEY.eq(&*serving.key) & Request::STATE.eq(RequestState::Open);
        ctx.repository::<Request>().on_shard(&on).find_where(open).await
    }
}

impl Action for Serve {
    const NAME: &'static str = "request.serve";
    type Params = Serving;
    type Output = ();
    type Error = ReadError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        serving: &Serving,
    ) -> Result<(), ReadError> {
        // The request of a call that should not be there is missing.
        let request = ctx.find(ShardedId::<Request>::from_uuid(serving.request)).await?;
        let mut position = 0;
        match serving.manner {
            Manner::Plain => {}
            Manner::Chained => {
                let plain =
                    Wish { manner: Manner::Plain, key: String::new(), after: Duration::ZERO };
                let maker = (serving.request.to_string(), 0, 0);
                self.enqueue(ctx, serving.shard, maker, &plain);
            }
            Manner::Unique => {
                for open in self.open_requests(ctx, serving).await? {
                    let served = open.apply(|request| request.state = RequestState::Served);
                    ctx.plan().update(served);
                }
            }
            Manner::InTurn => position = self.last_position(ctx, serving).await? + 1,
            // What is found is still so at the commit.
            Manner::Cancellable => request.iter().for_each(|found| ctx.plan().expect(found)),
        }
        let effect = CallEffect {
            id: ctx.new_sharded_id(shard(serving.shard)),
            request: serving.request.to_string(),
            call_key: serving.key.clone(),
            position,
            found: request.map_or(RequestState::Open, |request| request.state),
            state: EntryState::Posted,
        };
        ctx.plan().add(New::new(effect, ()));
        Ok(())
    }
}
