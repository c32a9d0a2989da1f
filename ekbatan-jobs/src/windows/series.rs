//! What an application writes: a series of windows.

use std::time::Duration;

use chrono::{DateTime, Utc};
use ekbatan_core::action::Action;
use ekbatan_core::domain::ShardedId;
use ekbatan_core::shard::Databases;
use serde::{Deserialize, Serialize};

use super::window::{NewWindow, Window};
use crate::job_set::BoxError;

/// Windows of one kind: which there are, and how their rows are batched.
///
/// ```
/// # use chrono::{DateTime, Utc};
/// # use ekbatan_core::action::{Action, ActionContext};
/// # use ekbatan_core::repository::ReadError;
/// # use ekbatan_core::shard::Databases;
/// # use ekbatan_jobs::windows::*;
/// # pub struct BatchOrders;
/// # impl Action for BatchOrders {
/// #     const NAME: &'static str = "orders.batch"; type Params = WindowChunk; type Output = ChunkOutcome; type Error = ReadError;
/// #     async fn perform(&self, _: &mut ActionContext<'_>, _: &WindowChunk) -> Result<ChunkOutcome, ReadError> { Ok(ChunkOutcome::last(0)) }
/// # }
/// # pub struct RefuseOrders;
/// # impl Action for RefuseOrders {
/// #     const NAME: &'static str = "orders.refuse"; type Params = OfWindow; type Output = (); type Error = ReadError;
/// #     async fn perform(&self, _: &mut ActionContext<'_>, _: &OfWindow) -> Result<(), ReadError> { Ok(()) }
/// # }
/// pub struct Settlement {
///     banks: Vec<String>,
///     cutoffs: Cutoffs,
/// }
///
/// impl WindowSeries for Settlement {
///     const NAME: &'static str = "settlement";
///     type Batch = BatchOrders;
///     type Refuse = RefuseOrders;
///
///     fn batch(&self) -> &BatchOrders {
///         &BatchOrders
///     }
///
///     fn refuse(&self) -> &RefuseOrders {
///         &RefuseOrders
///     }
///
///     async fn upcoming(
///         &self,
///         _: &Databases,
///         now: DateTime<Utc>,
///     ) -> Result<Vec<NewWindow>, Box<dyn std::error::Error + Send + Sync>> {
///         let Some(next) = self.cutoffs.after(now) else { return Ok(Vec::new()) };
///         Ok(self.banks.iter().map(|bank| NewWindow::new(bank, &next.key, next.instant)).collect())
///     }
/// }
/// ```
pub trait WindowSeries: Send + Sync + 'static {
    /// The stored name. It must never change.
    const NAME: &'static str;

    /// Takes the next rows of a window into a batch.
    type Batch: Action<Params = WindowChunk, Output = ChunkOutcome>;

    /// Refuses rows that came into a window after it was closed. Each series needs an action of its own.
    type Refuse: Action<Params = OfWindow>;

    /// The action that batches. It takes rows that are in no batch, as many as are to be in one, and
    /// stages the batch with its event. What it stages is committed together with the count of chunks
    /// of the window, once for each chunk, however often it runs.
    ///
    /// If there are several shards, let it read rows [on that](ekbatan_core::repository::Repository::on_shard)
    /// of the window. A condition asks all shards otherwise, and fails while one of them is down.
    fn batch(&self) -> &Self::Batch;

    /// The action that refuses what is found late. It has nothing to do as long as every row is added
    /// by an action that asks [`Window::admits`], and every transaction ends before the barrier is given
    /// up; see [`Shard::transaction_barrier`](ekbatan_core::shard::Shard::transaction_barrier).
    fn refuse(&self) -> &Self::Refuse;

    /// The windows that are to be open from now on, by the clock of the database. The job asks for
    /// them each time that it runs, and opens those that there are not. Windows that are opened by
    /// [`Windows::open`](super::Windows::open) need not be among them.
    fn upcoming(
        &self,
        databases: &Databases,
        now: DateTime<Utc>,
    ) -> impl Future<Output = Result<Vec<NewWindow>, BoxError>> + Send {
        let _ = (databases, now);
        async { Ok(Vec::new()) }
    }

    /// How long after a window is closed what is late is looked for, once; five minutes unless set.
    /// `None` for never.
    fn late_check(&self) -> Option<Duration> {
        Some(Duration::from_secs(5 * 60))
    }
}

/// A chunk of a window that is to be batched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WindowChunk {
    /// The window.
    pub window: ShardedId<Window>,
    /// The number of the chunk, from 0.
    pub number: i64,
}

impl WindowChunk {
    /// A chunk, for tests of the action that batches it.
    pub fn new(window: ShardedId<Window>, number: i64) -> Self {
        Self { window, number }
    }
}

/// What an action has batched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChunkOutcome {
    /// How many rows are in the chunk.
    pub rows: u64,
    /// Whether no row was left.
    pub is_last: bool,
}

impl ChunkOutcome {
    /// Rows are left: another chunk follows.
    pub fn more(rows: u64) -> Self {
        Self { rows, is_last: false }
    }

    /// No row is left. If there was none, the chunk must stage nothing.
    pub fn last(rows: u64) -> Self {
        Self { rows, is_last: true }
    }
}

/// A window whose late rows are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OfWindow {
    /// The window.
    pub window: ShardedId<Window>,
}

impl OfWindow {
    /// A window, for tests of the action that refuses.
    pub fn new(window: ShardedId<Window>) -> Self {
        Self { window }
    }
}
