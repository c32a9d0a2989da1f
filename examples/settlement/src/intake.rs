//! The intake: stores an order, and waits for nobody.

use ekbatan::domain::New;
use ekbatan::jobs::windows::{Window, WindowState};
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};

use crate::order::{Order, OrderState};
use crate::settlement::SERIES;

/// Stores an order as `PENDING`, or as `REJECTED_CUTOFF` if its window closes already.
pub struct AcceptOrder {
    /// The commit does not compare the window that was read, to show what is lost then.
    pub naive: bool,
}

/// What a bank sends. Sent twice, it is one order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewOrder {
    pub id: Id<Order>,
    pub bank: String,
    /// The key of the window.
    pub window: String,
    pub amount: Decimal,
}

#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    #[error("there is no window `{window}` of `{bank}`")]
    NoWindow { bank: String, window: String },
    #[error(
        "the amount is {0}, and must be more than zero and less than 10^13, with at most two digits of cents"
    )]
    Amount(Decimal),
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// A batch has at most 65,535 orders, and its amount has room for 18 digits before the point. If the sum of its orders had more, it
/// could not be stored, and the window would never close.
const TOO_LARGE: i64 = 10_000_000_000_000;

impl Action for AcceptOrder {
    const NAME: &'static str = "orders.accept";
    type Params = NewOrder;
    type Output = OrderState;
    type Error = IntakeError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        order: &NewOrder,
    ) -> Result<OrderState, IntakeError> {
        let NewOrder { id, bank, window, amount } = order.clone();
        let is_amount = amount > Decimal::ZERO && amount < TOO_LARGE.into() && amount.scale() <= 2;
        if !is_amount {
            return Err(IntakeError::Amount(amount));
        }
        let Some(row) = ctx.find(Window::id_of(SERIES, &bank, &window)).await? else {
            return Err(IntakeError::NoWindow { bank, window });
        };
        let is_in_time = if self.naive {
            row.state == WindowState::Open
        } else {
            // Locks nothing. If the window begins to close before the commit, this runs again.
            Window::admits(&row, ctx.plan())
        };
        let state = if is_in_time { OrderState::Pending } else { OrderState::RejectedCutoff };
        let order = Order { id, bank, window: row.id, amount, batch: None, state };
        ctx.plan().add(New::new(order, ()));
        Ok(state)
    }
}
