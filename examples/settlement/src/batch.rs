//! Batches: what has come into a window is taken into them, in chunks, and what is late is refused.

use std::error::Error;

use async_trait::async_trait;
use ekbatan::action::Effect;
use ekbatan::db::Committed;
use ekbatan::domain::New;
use ekbatan::jobs::windows::{ChunkOutcome, OfWindow, Window, WindowChunk};
use ekbatan::prelude::*;
use ekbatan::repository::PageRequest;
use serde::{Deserialize, Serialize};

use crate::order::{Order, OrderState};

/// Orders that are emitted together. It never changes.
#[derive(Debug, Clone, PartialEq, Model)]
#[model(table = "order_batches", event = BatchEvent, name = "OrderBatch")]
pub struct OrderBatch {
    pub id: Id<OrderBatch>,
    #[column(name = "window_id")]
    pub window: ShardedId<Window>,
    /// The number of the chunk.
    pub number: i64,
    pub orders: i64,
    pub amount: Decimal,
    pub state: BatchState,
}

#[derive(Debug, Clone, Copy, PartialEq, State)]
pub enum BatchState {
    Complete,
}

/// What the relay sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Event)]
pub enum BatchEvent {
    #[event(name = "OrdersBatched")]
    Batched {
        batch: Id<OrderBatch>,
        window: ShardedId<Window>,
        /// The key of the window, which becomes that of the message.
        key: String,
        bank: String,
        number: i64,
        orders: Vec<Id<Order>>,
        amount: Decimal,
    },
}

/// Takes the next orders of a window into a batch. The window counts it in the same commit.
pub struct BatchOrders {
    /// The most orders of a batch.
    pub size: usize,
    /// Ends the process right after the commit, as a crash does.
    pub dies_afterwards: bool,
}

impl Action for BatchOrders {
    const NAME: &'static str = "orders.batch";
    type Params = WindowChunk;
    type Output = ChunkOutcome;
    type Error = ReadError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        chunk: &WindowChunk,
    ) -> Result<ChunkOutcome, ReadError> {
        let pending = Order::WINDOW.eq(chunk.window) & Order::STATE.eq(OrderState::Pending);
        let page = PageRequest::first(self.size + 1).filter(pending);
        let mut orders = ctx.repository::<Order>().page(page).await?.rows;
        let is_last = orders.len() <= self.size;
        orders.truncate(self.size);
        if orders.is_empty() {
            return Ok(ChunkOutcome::last(0));
        }
        let rows = orders.len() as u64;
        let window = ctx.get(chunk.window).await?;
        let (batch, event) = batch(ctx.new_id(), &window, chunk.number, &orders);
        for order in orders {
            let batched = order.apply(|order| {
                (order.state, order.batch) = (OrderState::Batched, Some(batch.id));
            });
            ctx.plan().update(batched);
        }
        ctx.plan().add(New::new(batch, event));
        if self.dies_afterwards {
            ctx.plan().effect(Death);
        }
        Ok(if is_last { ChunkOutcome::last(rows) } else { ChunkOutcome::more(rows) })
    }
}

/// Ends the process once a batch is committed, and before anybody has got it.
struct Death;

#[async_trait]
impl Effect for Death {
    fn name(&self) -> &str {
        "die"
    }

    async fn run(self: Box<Self>, _: Committed) -> Result<(), Box<dyn Error + Send + Sync>> {
        std::process::abort()
    }
}

/// A batch of these orders, and its event.
pub fn batch(
    id: Id<OrderBatch>,
    window: &Window,
    number: i64,
    orders: &[Stored<Order>],
) -> (OrderBatch, BatchEvent) {
    let amount = orders.iter().map(|order| order.amount).sum();
    let event = BatchEvent::Batched {
        batch: id,
        window: window.id,
        key: window.key.clone(),
        bank: window.participant.clone(),
        number,
        orders: orders.iter().map(|order| order.id).collect(),
        amount,
    };
    let orders = orders.len() as i64;
    (
        OrderBatch { id, window: window.id, number, orders, amount, state: BatchState::Complete },
        event,
    )
}

/// Refuses the orders that came into a window after it was closed. There are none, unless somebody adds
/// orders without asking the window.
pub struct RefuseOrders;

impl Action for RefuseOrders {
    const NAME: &'static str = "orders.refuse";
    type Params = OfWindow;
    type Output = ();
    type Error = ReadError;

    async fn perform(&self, ctx: &mut ActionContext<'_>, of: &OfWindow) -> Result<(), ReadError> {
        let late = Order::WINDOW.eq(of.window) & Order::STATE.eq(OrderState::Pending);
        for order in ctx.repository::<Order>().find_where(late).await? {
            ctx.plan().update(order.apply(|order| order.state = OrderState::RejectedCutoff));
        }
        Ok(())
    }
}
