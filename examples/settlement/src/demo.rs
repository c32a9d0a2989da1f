//! A day in a moment: banks send orders, also around the cutoffs, and some come too late.

use std::net::SocketAddr;
use std::time::Duration;

use chrono::TimeDelta;
use ekbatan::chrono;
use ekbatan::domain::State;
use ekbatan::jobs::windows::Cutoffs;
use ekbatan::prelude::*;
use futures_util::future::try_join_all;

use crate::Failure;
use crate::check::Books;
use crate::client::send;
use crate::intake::NewOrder;
use crate::order::OrderState;

/// How many cutoffs a day has.
pub const CUTOFFS: u32 = 4;

/// A day.
pub struct Day {
    pub server: SocketAddr,
    pub cutoffs: Cutoffs,
    pub banks: Vec<String>,
    /// How many orders a second each bank sends.
    pub rate: f64,
    /// The last cutoff.
    pub end: DateTime<Utc>,
    /// How much later than it should a bank may send an order.
    pub latest: Duration,
}

/// What a bank knows of an order that it has sent.
pub struct Sent {
    pub order: NewOrder,
    pub state: OrderState,
}

impl Day {
    /// Plays the day. Answers what the banks have sent.
    pub async fn play(&self) -> Result<Vec<Sent>, Failure> {
        let sent = try_join_all(self.banks.iter().map(|bank| self.play_bank(bank))).await?;
        Ok(sent.into_iter().flatten().collect())
    }

    async fn play_bank(&self, bank: &str) -> Result<Vec<Sent>, Failure> {
        let (began, mut sent) = (Utc::now(), Vec::new());
        while Utc::now() < self.end + self.latest {
            // The order was made a moment ago, for the window that was the next one then.
            let delay = self.latest.mul_f64(fastrand::f64());
            let made = (Utc::now() - TimeDelta::from_std(delay)?).max(began);
            let cutoff = self.cutoffs.after(made).filter(|of| of.instant <= self.end);
            let Some(cutoff) = cutoff else {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            };
            let amount = Decimal::new(fastrand::i64(1..=1_000_000), 2);
            let order =
                NewOrder { id: Id::new(), bank: bank.to_owned(), window: cutoff.key, amount };
            let state = loop {
                match send(self.server, &order).await? {
                    // The job has not opened it yet.
                    None if Utc::now() < cutoff.instant => {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    answered => break answered,
                }
            };
            // Without an answer nobody has taken the order, because the machine was too slow to open the window.
            sent.extend(state.map(|state| Sent { order, state }));
            let pause = Duration::from_secs_f64(2.0 * fastrand::f64() / self.rate);
            tokio::time::sleep(pause).await;
        }
        Ok(sent)
    }
}

/// Compares what the banks know with what is stored.
pub fn differences(sent: &[Sent], books: &Books) -> Vec<String> {
    let ends_as = |state| match state {
        OrderState::RejectedCutoff => OrderState::RejectedCutoff,
        _ => OrderState::Emitted,
    };
    let wrong = sent.iter().filter_map(|Sent { order, state }| {
        let (said, found) = (ends_as(*state), books.state_of(order.id));
        (found != Some(said)).then(|| {
            let NewOrder { id, bank, .. } = order;
            let found = found.as_ref().map_or("nothing", State::as_str);
            format!("order {id} of {bank} was answered {} and ended as {found}", state.as_str())
        })
    });
    wrong.collect()
}
