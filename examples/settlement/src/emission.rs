//! The consumer: gets batches from the broker, and marks their orders as emitted, each batch once.

use ekbatan::action::{ErrorKind, Once};
use ekbatan::jobs::windows::{Window, WindowState};
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::batch::{BatchEvent, OrderBatch};
use crate::order::{Order, OrderState};

/// Who handles the batches. Each consumer of its own name would get all of them.
pub const CONSUMER: &str = "str.emission";

/// Marks the orders of a batch as emitted.
pub struct EmitOrders;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Emission {
    pub batch: Id<OrderBatch>,
    pub window: ShardedId<Window>,
    pub orders: Vec<Id<Order>>,
}

#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    #[error("a batch of the window `{0}` has come before the window closes")]
    Early(String),
    #[error("{found} of the {said} orders of batch {batch} can be emitted")]
    Incomplete { batch: Id<OrderBatch>, said: usize, found: usize },
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Action for EmitOrders {
    const NAME: &'static str = "orders.emit";
    type Params = Emission;
    type Output = usize;
    type Error = EmitError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        emission: &Emission,
    ) -> Result<usize, EmitError> {
        let window = ctx.get(emission.window).await?;
        if window.state == WindowState::Open {
            return Err(EmitError::Early(window.key.clone()));
        }
        let mut orders = ctx.repository::<Order>().find_by_ids(&emission.orders).await?;
        orders.retain(|order| {
            order.state == OrderState::Batched && order.batch == Some(emission.batch)
        });
        let (said, found) = (emission.orders.len(), orders.len());
        if said != found {
            return Err(EmitError::Incomplete { batch: emission.batch, said, found });
        }
        for order in orders {
            ctx.plan().update(order.apply(|order| order.state = OrderState::Emitted));
        }
        Ok(found)
    }
}

/// Handles a message. It must be acknowledged if, and only if, this succeeds.
pub async fn handle(
    executor: &ActionExecutor,
    message_id: &str,
    payload: &[u8],
) -> Result<(), Failure> {
    let emission: Emission = serde_json::from_slice(payload)?;
    let batch = emission.batch;
    let call = executor.execute(&EmitOrders, emission).principal(CONSUMER);
    match call.once(CONSUMER, message_id).await {
        Ok(Once::Done(orders)) => tracing::info!(%batch, orders, "emitted"),
        Ok(Once::Duplicate) => tracing::info!(%batch, "a repetition"),
        Err(error) => {
            if error.kind() == ErrorKind::Domain {
                tracing::error!(%batch, %error, "a batch is wrong");
            }
            return Err(error.into());
        }
    }
    Ok(())
}

impl From<BatchEvent> for Emission {
    fn from(event: BatchEvent) -> Self {
        let BatchEvent::Batched { batch, window, orders, .. } = event;
        Self { batch, window, orders }
    }
}
