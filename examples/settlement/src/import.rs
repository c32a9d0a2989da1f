//! A program of a bank that adds its orders by a transaction of its own, which is slow: it is still open
//! when the window begins to close.

use std::time::Duration;

use ekbatan::domain::New;
use ekbatan::jobs::windows::{Window, WindowState};
use ekbatan::prelude::*;
use ekbatan::repository::WriteError;

use crate::Failure;
use crate::demo::Sent;
use crate::intake::NewOrder;
use crate::order::{Order, OrderState};

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum ImportError {
    Read(#[from] ReadError),
    Write(#[from] WriteError),
}

/// How many orders it adds.
const ORDERS: usize = 10;

/// Adds orders to an open window. The transaction commits once others see that the window closes.
pub async fn import_slowly(
    executor: &ActionExecutor,
    window: &Stored<Window>,
) -> Result<Vec<Sent>, Failure> {
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
        while windows.get(id).await?.state == WindowState::Open {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok::<_, ImportError>(())
    });
    committed.await?;
    let sent = orders.into_iter().map(|Order { id, bank, amount, state, .. }| {
        let order = NewOrder { id, bank, window: window.key.clone(), amount };
        Sent { order, state }
    });
    Ok(sent.collect())
}
