//! A program of a bank that adds its orders by a transaction of its own, which is slow: it is still open
//! when the window begins to close.

use std::time::Duration;

use ekbatan::db::TransactionError;
use ekbatan::domain::New;
use ekbatan::jobs::windows::{Window, WindowState};
use ekbatan::prelude::*;
use ekbatan::repository::WriteError;

use crate::Failure;
use crate::demo::Sent;
use crate::intake::NewOrder;
use crate::order::{Order, OrderState};

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("the window began to close before the orders were added")]
    Late,
}

/// How many orders it adds.
const ORDERS: usize = 10;

/// Adds orders to an open window. The transaction commits once others see that the window closes. `None`: the
/// window began to close before the orders were added, and nothing was.
pub async fn import_slowly(
    executor: &ActionExecutor,
    window: &Stored<Window>,
) -> Result<Option<Vec<Sent>>, Failure> {
    let databases = executor.databases();
    let orders: Vec<Order> = (0..ORDERS)
        .map(|n| Order {
            id: Id::new(),
            bank: window.participant.clone(),
            window: window.id,
            amount: Decimal::from(n + 1),
            batch: None,
            state: OrderState::Pending,
        })
        .collect();
    let (adding, id) = (orders.clone(), window.id);
    let windows = databases.repository::<Window>();
    let transactions = databases.transactions();
    let committed = transactions.in_transaction(|transaction| async move {
        let new = adding.into_iter().map(|order| New::new(order, ()));
        databases.repository().within(&transaction).add_all(new).await?;
        // The barrier waits for this transaction only if the window is still open now.
        let mut is_in_time = false;
        while windows.get(id).await?.state == WindowState::Open {
            is_in_time = true;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if is_in_time { Ok(()) } else { Err(ImportError::Late) }
    });
    match committed.await {
        Ok(()) => {}
        Err(TransactionError::Inner(ImportError::Late)) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let sent = orders.into_iter().map(|Order { id, bank, amount, state, .. }| {
        let order = NewOrder { id, bank, window: window.key.clone(), amount };
        Sent { order, state }
    });
    Ok(Some(sent.collect()))
}
