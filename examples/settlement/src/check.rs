//! What must hold once the windows are closed, whoever has closed them; and how every order ended.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use ekbatan::domain::State;
use ekbatan::jobs::windows::{Window, WindowState};
use ekbatan::prelude::*;

use crate::batch::OrderBatch;
use crate::order::{Order, OrderState};
use crate::settlement::SERIES;

/// All windows, orders and batches, at one moment.
pub struct Books {
    windows: Vec<Window>,
    orders: Vec<Order>,
    batches: Vec<OrderBatch>,
}

/// How many orders, and how much.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sum {
    pub orders: usize,
    pub amount: Decimal,
}

impl Books {
    pub async fn read(databases: &Databases) -> Result<Self, ReadError> {
        let of_series = Window::SERIES.eq(SERIES);
        let windows = databases.repository::<Window>().find_where(of_series).await?;
        let orders = databases.repository::<Order>().find_all().await?;
        let batches = databases.repository::<OrderBatch>().find_all().await?;
        let mut windows: Vec<Window> = windows.into_iter().map(Stored::into_value).collect();
        windows.sort_by(|a, b| (a.cutoff, &a.participant).cmp(&(b.cutoff, &b.participant)));
        Ok(Self {
            windows,
            orders: orders.into_iter().map(Stored::into_value).collect(),
            batches: batches.into_iter().map(Stored::into_value).collect(),
        })
    }

    /// Whether nothing is left to be done: each window that has orders, or whose cutoff has come, is
    /// closed, and its orders have ended.
    pub fn are_settled(&self, now: DateTime<Utc>) -> bool {
        let is_done = |window: &&Window| window.state == WindowState::Closed;
        let has_orders = |window: &Window| self.of(window).next().is_some();
        let of_interest =
            self.windows.iter().filter(|window| window.cutoff <= now || has_orders(window));
        of_interest.clone().all(|window| is_done(&window))
            && of_interest.filter(is_done).flat_map(|window| self.of(window)).all(has_ended)
    }

    /// Whether each window whose cutoff has come is closed.
    pub fn are_closed(&self, now: DateTime<Utc>) -> bool {
        let due = self.windows.iter().filter(|window| window.cutoff <= now);
        due.into_iter().all(|window| window.state == WindowState::Closed)
    }

    fn of<'b>(&'b self, window: &Window) -> impl Iterator<Item = &'b Order> {
        let id = window.id;
        self.orders.iter().filter(move |order| order.window == id)
    }

    /// The sum of the orders in a state.
    pub fn sum(&self, state: OrderState) -> Sum {
        sum(self.orders.iter().filter(|order| order.state == state))
    }

    pub fn state_of(&self, order: Id<Order>) -> Option<OrderState> {
        self.orders.iter().find(|of| of.id == order).map(|order| order.state)
    }

    /// Everything that is wrong, one sentence each.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for window in self.windows.iter().filter(|window| window.state == WindowState::Closed) {
            self.check_window(window, &mut faults);
        }
        let known: HashMap<_, _> = self.windows.iter().map(|window| (window.id, window)).collect();
        let mut numbers = HashMap::new();
        for batch in &self.batches {
            let name = known.get(&batch.window).map_or("no window", |window| &window.key);
            if known.get(&batch.window).is_none_or(|of| of.state == WindowState::Open) {
                faults.push(format!("batch {} of {name} came before the window closed", batch.id));
            }
            if numbers.insert((batch.window, batch.number), batch.id).is_some() {
                faults.push(format!("{name} has its batch {} twice", batch.number));
            }
            let said = Sum { orders: batch.orders as usize, amount: batch.amount };
            let found = sum(self.orders.iter().filter(|order| order.batch == Some(batch.id)));
            if said != found {
                faults.push(format!(
                    "batch {} of {name} says {said} and holds {found}",
                    batch.number
                ));
            }
        }
        faults
    }

    fn check_window(&self, window: &Window, faults: &mut Vec<String>) {
        let name = format!("{} of {}", window.key, window.participant);
        let in_state = |state| sum(self.of(window).filter(|order| order.state == state));
        let left = in_state(OrderState::Pending);
        if left.orders > 0 {
            faults.push(format!("{name} was closed and has left {left} behind"));
        }
        let lost = in_state(OrderState::Batched);
        if lost.orders > 0 {
            faults.push(format!("{name} has batched {lost} that nobody got"));
        }
        let batches: Vec<_> = self.batches.iter().filter(|of| of.window == window.id).collect();
        let rows: i64 = batches.iter().map(|batch| batch.orders).sum();
        if (window.chunks, window.batched) != (batches.len() as i64, rows) {
            faults.push(format!(
                "{name} says {} batches of {} orders, and has {} of {rows}",
                window.chunks,
                window.batched,
                batches.len()
            ));
        }
        for order in self.of(window) {
            let is_batched = matches!(order.state, OrderState::Batched | OrderState::Emitted);
            if is_batched != order.batch.is_some() {
                faults.push(format!("order {} of {name} is {:?}", order.id, order.state));
            }
        }
    }
}

impl fmt::Display for Books {
    /// How the orders of each window ended.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "   window                    bank       state    batches  emitted       amount  late"
        )?;
        let with_orders = self.windows.iter().filter(|window| self.of(window).next().is_some());
        for window in with_orders {
            let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
            for order in self.of(window) {
                let of_state = sums.entry(State::as_str(&order.state)).or_default();
                of_state.orders += 1;
                of_state.amount += order.amount;
            }
            let of = |state: &str| sums.get(state).copied().unwrap_or_default();
            let emitted = of("EMITTED");
            writeln!(
                f,
                "   {:<25} {:<10} {:<9} {:>6} {:>8} {:>12} {:>5}",
                window.key,
                window.participant,
                State::as_str(&window.state),
                window.chunks,
                emitted.orders,
                emitted.amount,
                of("REJECTED_CUTOFF").orders,
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} order(s) over {}", self.orders, self.amount)
    }
}

fn has_ended(order: &Order) -> bool {
    matches!(order.state, OrderState::Emitted | OrderState::RejectedCutoff)
}

fn sum<'o>(orders: impl Iterator<Item = &'o Order>) -> Sum {
    orders.fold(Sum::default(), |sum, order| Sum {
        orders: sum.orders + 1,
        amount: sum.amount + order.amount,
    })
}
