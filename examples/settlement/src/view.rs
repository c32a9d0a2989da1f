//! What the page shows.

use ekbatan::domain::State;
use ekbatan::jobs::windows::Window;
use ekbatan::prelude::*;
use ekbatan::repository::{Direction, PageRequest};
use serde::Serialize;

use crate::order::{Order, OrderState};
use crate::settlement::SERIES;

/// How many windows the page shows.
const WINDOWS: usize = 24;

/// How many orders the page shows.
const ORDERS: usize = 12;

const STATES: [OrderState; 4] =
    [OrderState::Pending, OrderState::Batched, OrderState::Emitted, OrderState::RejectedCutoff];

#[derive(Debug, Serialize)]
pub struct View {
    now: DateTime<Utc>,
    /// The last ones first.
    windows: Vec<WindowView>,
    orders: Vec<Order>,
}

#[derive(Debug, Serialize)]
struct WindowView {
    key: String,
    bank: String,
    cutoff: DateTime<Utc>,
    state: &'static str,
    batches: i64,
    /// How many orders are in each state.
    orders: Vec<(&'static str, u64)>,
}

impl View {
    pub async fn read(databases: &Databases) -> Result<Self, ReadError> {
        let page = PageRequest::first(WINDOWS)
            .filter(Window::SERIES.eq(SERIES))
            .order_by(Window::CUTOFF, Direction::Descending);
        let mut rows = databases.repository::<Window>().page(page).await?.rows;
        rows.sort_by(|a, b| (b.cutoff, &a.participant).cmp(&(a.cutoff, &b.participant)));
        let mut windows = Vec::new();
        for window in rows {
            windows.push(WindowView::read(databases, window.into_value()).await?);
        }
        let page = PageRequest::first(ORDERS).order_by(Order::ID, Direction::Descending);
        let orders = databases.repository::<Order>().page(page).await?.rows;
        let orders = orders.into_iter().map(Stored::into_value).collect();
        Ok(Self { now: Utc::now(), windows, orders })
    }
}

impl WindowView {
    async fn read(databases: &Databases, window: Window) -> Result<Self, ReadError> {
        let all = databases.repository::<Order>();
        let mut orders = Vec::new();
        for state in STATES {
            let of_state = Order::WINDOW.eq(window.id) & Order::STATE.eq(state);
            orders.push((state.as_str(), all.count_where(of_state).await?));
        }
        let Window { key, participant, cutoff, state, chunks, .. } = window;
        Ok(Self { key, bank: participant, cutoff, state: state.as_str(), batches: chunks, orders })
    }
}
