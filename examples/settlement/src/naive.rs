//! The same by hand, as it is often done: select what is pending, commit the batch, then publish it. It
//! has three defects, and the checker finds them:
//!
//! - If the process dies between the commit and the publishing, nobody gets the batch.
//! - Orders whose commit is under way at the time of the select stay behind.
//! - The clock of this node decides when a window closes.

use std::time::Duration;

use ekbatan::domain::New;
use ekbatan::jobs::windows::{Window, WindowState, Windows};
use ekbatan::prelude::*;

use crate::Failure;
use crate::batch::batch;
use crate::emission::{CONSUMER, Emission, handle};
use crate::order::{Order, OrderState};
use crate::settlement::{SERIES, Settlement};

pub struct NaiveCloser {
    pub executor: ActionExecutor,
    /// They are opened in the same way.
    pub windows: Windows<Settlement>,
    /// Ends the process between the commit and the publishing.
    pub dies_after_commit: bool,
}

impl NaiveCloser {
    /// Closes windows until the task ends.
    pub async fn run(self) {
        loop {
            if let Err(error) = self.close_due().await {
                tracing::warn!(%error, "windows were not closed; trying again");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn close_due(&self) -> Result<(), Failure> {
        let due = Window::SERIES.eq(SERIES)
            & Window::STATE.eq(WindowState::Open)
            & Window::CUTOFF.le(Utc::now());
        let windows = self.executor.databases().repository::<Window>();
        for window in windows.find_where(due).await? {
            self.close(window).await?;
            self.windows.open_upcoming(&self.executor).await?;
        }
        Ok(())
    }

    async fn close(&self, window: Stored<Window>) -> Result<(), Failure> {
        let databases = self.executor.databases();
        let pending = Order::WINDOW.eq(window.id) & Order::STATE.eq(OrderState::Pending);
        let orders = databases.repository::<Order>().find_where(pending).await?;
        let (batch, event) = batch(Id::new(), &window, 0, &orders);
        let (id, count) = (batch.id, orders.len() as i64);
        let batched = orders.into_iter().map(|order| {
            order.apply(|order| {
                (order.state, order.batch) = (OrderState::Batched, Some(id));
            })
        });
        let batched: Vec<_> = batched.collect();
        let closed = window.apply(|window| {
            window.state = WindowState::Closed;
            (window.chunks, window.batched) = (i64::from(count > 0), count);
        });
        let transactions = databases.transactions();
        let committed = transactions.in_transaction(|transaction| async move {
            if count > 0 {
                databases.repository().within(&transaction).add(New::new(batch, ())).await?;
                databases.repository().within(&transaction).update_all(batched).await?;
            }
            databases.repository().within(&transaction).update(closed).await?;
            Ok::<_, ekbatan::repository::WriteError>(())
        });
        committed.await?;
        if count == 0 {
            return Ok(());
        }
        if self.dies_after_commit {
            std::process::abort();
        }
        let payload = serde_json::to_vec(&Emission::from(event))?;
        handle(&self.executor, &format!("{CONSUMER}:{id}"), &payload).await
    }
}
