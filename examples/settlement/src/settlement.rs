//! The windows of the settlement: which there are, and how their orders are batched.

use std::error::Error;
use std::time::Duration;

use ekbatan::jobs::windows::{Cutoffs, NewWindow, WindowSeries};
use ekbatan::prelude::*;

use crate::batch::{BatchOrders, RefuseOrders};

/// The name of the series.
pub const SERIES: &str = Settlement::NAME;

/// Each bank has a window up to each cutoff.
pub struct Settlement {
    pub banks: Vec<String>,
    /// `None`: no window is opened any more.
    pub cutoffs: Option<Cutoffs>,
    pub batch: BatchOrders,
    pub late_check: Duration,
}

impl WindowSeries for Settlement {
    const NAME: &'static str = "settlement";
    type Batch = BatchOrders;
    type Refuse = RefuseOrders;

    fn batch(&self) -> &BatchOrders {
        &self.batch
    }

    fn refuse(&self) -> &RefuseOrders {
        &RefuseOrders
    }

    /// The window up to the next cutoff, and the one after that: orders for it may come early.
    async fn upcoming(
        &self,
        _: &Databases,
        now: DateTime<Utc>,
    ) -> Result<Vec<NewWindow>, Box<dyn Error + Send + Sync>> {
        let Some(cutoffs) = &self.cutoffs else { return Ok(Vec::new()) };
        let next = cutoffs.after(now);
        let second = next.as_ref().and_then(|next| cutoffs.after(next.instant));
        let windows = next.into_iter().chain(second).flat_map(|cutoff| {
            self.banks.iter().map(move |bank| NewWindow::new(bank, &cutoff.key, cutoff.instant))
        });
        Ok(windows.collect())
    }

    fn late_check(&self) -> Option<Duration> {
        Some(self.late_check)
    }
}
