//! An order: from its arrival to its emission.

use ekbatan::jobs::windows::Window;
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};

use crate::batch::OrderBatch;

/// An order of a bank, for one of its windows.
#[derive(Debug, Clone, PartialEq, Serialize, Entity)]
#[entity(table = "orders", name = "Order")]
pub struct Order {
    pub id: Id<Order>,
    pub bank: String,
    #[column(name = "window_id")]
    pub window: ShardedId<Window>,
    pub amount: Decimal,
    #[column(name = "batch_id")]
    pub batch: Option<Id<OrderBatch>>,
    pub state: OrderState,
}

/// How far an order is:
///
/// ```text
/// PENDING -> BATCHED -> EMITTED
/// REJECTED_CUTOFF
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, State)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum OrderState {
    /// It has come in time, and waits for the cutoff.
    Pending,
    /// It is in a batch.
    Batched,
    /// The consumer of the batch has it.
    Emitted,
    /// It has come after the window began to close.
    RejectedCutoff,
}
