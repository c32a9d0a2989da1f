//! The job: begins to close the windows that are due, and opens those that come next.
//!
//! Invariant: the clock of the database of each shard decides what is due there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use ekbatan_core::action::{ErrorKind, ExecuteError};
use ekbatan_core::domain::ShardIdentifier;
use ekbatan_core::repository::PageRequest;
use ekbatan_core::shard::Shard;
use futures_util::{StreamExt, stream};

use super::begin_closing::{BeginClosing, DueWindow};
use super::error::{SeriesError, WindowError};
use super::open_window::{OpenWindow, check_key};
use super::series::WindowSeries;
use super::window::{NewWindow, Window, WindowState};
use crate::job::{Job, RunContext};
use crate::job_set::BoxError;

/// How many windows of a shard are opened or begin to close at a time, and on how many shards.
const AT_A_TIME: usize = 16;

/// How many windows are looked at together.
const PAGE: usize = 1_000;

/// The pauses before windows are tried again that could not be opened or begin to close.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The longest time of one try. A run has no deadline, and what hangs must not keep its place for good.
const LONGEST_TRY: Duration = Duration::from_secs(60 * 60);

/// The longest time between two looks at windows whose cutoff is about to come by their own clock.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// Begins to close the windows of a series, and opens others.
pub(super) struct CloseWindows<S>(pub(super) Arc<S>);

impl<S: WindowSeries> Job for CloseWindows<S> {
    const NAME: &'static str = S::NAME;
    type Error = BoxError;

    async fn run(&self, ctx: &mut RunContext<'_>) -> Result<(), BoxError> {
        let ctx = &*ctx;
        // Neither keeps the other from being done.
        let (closed, opened) = tokio::join!(
            until_done::<S, _>(ctx, || close_due::<S>(ctx)),
            until_done::<S, _>(ctx, || self.open_upcoming(ctx)),
        );
        // What was opened only after its cutoff, a run for that cutoff may not have seen.
        let closed_since = until_done::<S, _>(ctx, || close_due::<S>(ctx)).await;
        closed.and(opened).and(closed_since)
    }
}

/// Tries again what fails, until it is done, the run is cancelled, or there is a later run: that one does
/// the same, and the two need not take two places of a node.
async fn until_done<S, T>(ctx: &RunContext<'_>, attempt: impl Fn() -> T) -> Result<(), BoxError>
where
    S: WindowSeries,
    T: Future<Output = Result<(), SeriesError>>,
{
    let mut pause = FIRST_PAUSE;
    loop {
        let error: BoxError = match tokio::time::timeout(LONGEST_TRY, attempt()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.into(),
            Err(_) => format!("did not end within {LONGEST_TRY:?}").into(),
        };
        if ctx.is_lost() || ctx.is_overtaken().await.unwrap_or(false) {
            return Err(error);
        }
        tracing::warn!(series = S::NAME, %error, "trying again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

impl<S: WindowSeries> CloseWindows<S> {
    async fn open_upcoming(&self, ctx: &RunContext<'_>) -> Result<(), SeriesError> {
        let databases = ctx.executor().databases();
        let now = databases.default_shard().database_time().await?;
        let upcoming = self.0.upcoming(databases, now).await.map_err(WindowError::Upcoming)?;
        open_all(upcoming, |new| open::<S>(ctx, new, now)).await
    }
}

/// Opens windows, some at a time. Answers the first failure, which stops no other window.
pub(super) async fn open_all<T, E>(
    windows: Vec<NewWindow>,
    open: impl Fn(NewWindow) -> T + Copy,
) -> Result<(), E>
where
    T: Future<Output = Result<(), E>>,
{
    let mut by_shard = BTreeMap::<ShardIdentifier, Vec<NewWindow>>::new();
    for new in windows {
        by_shard.entry(new.shard).or_default().push(new);
    }
    // Each shard by itself: one that does not answer must not take the places of the others.
    all(by_shard.into_values().map(|news| all(news.into_iter().map(open)))).await
}

/// Opens a window, unless it is there.
async fn open<S: WindowSeries>(
    ctx: &RunContext<'_>,
    new: NewWindow,
    now: DateTime<Utc>,
) -> Result<(), SeriesError> {
    let windows = ctx.executor().databases().repository::<Window>();
    if let Some(there) = windows.find(Window::open(S::NAME, &new).0.id).await? {
        return Ok(check_key(&there, &new, now)?);
    }
    let NewWindow { key, participant, .. } = new.clone();
    match ctx.execute(&OpenWindow { series: S::NAME }, new).await {
        Ok(_) => Ok(()),
        // Somebody else has opened it meanwhile.
        Err(error) if error.kind() == ErrorKind::Unique => Ok(()),
        Err(error) => Err(SeriesError::Open { key, participant, error: error.into() }),
    }
}

/// Begins to close everything that is due.
async fn close_due<S: WindowSeries>(ctx: &RunContext<'_>) -> Result<(), SeriesError> {
    let shards: Vec<Shard> = ctx.executor().databases().shards().collect();
    all(shards.into_iter().map(|shard| close_due_on::<S>(ctx, shard))).await
}

/// Takes all steps, some at a time. Answers the first failure.
async fn all<T, E>(steps: impl Iterator<Item = T>) -> Result<(), E>
where
    T: Future<Output = Result<(), E>>,
{
    let mut steps = stream::iter(steps).buffer_unordered(AT_A_TIME);
    let mut failed = Ok(());
    while let Some(taken) = steps.next().await {
        failed = failed.and(taken);
    }
    failed
}

async fn close_due_on<S: WindowSeries>(
    ctx: &RunContext<'_>,
    shard: Shard,
) -> Result<(), SeriesError> {
    let windows = ctx.executor().databases().repository::<Window>().on_shard(&shard);
    loop {
        let now = shard.database_time().await?;
        let due = windows.page(open_until::<S>(now)).await?.rows;
        let is_all = due.len() < PAGE;
        let closing = due.into_iter().map(|window| async move {
            let closed = ctx.execute(&BeginClosing, DueWindow { window: window.id, now }).await;
            (window, closed)
        });
        let mut closed = stream::iter(closing).buffer_unordered(AT_A_TIME);
        let mut failed: Option<(Window, ExecuteError<WindowError>)> = None;
        let mut count = 0;
        while let Some((window, closed)) = closed.next().await {
            match closed {
                Ok(_) => {
                    tracing::info!(series = S::NAME, window = %window.key, participant = %window.participant, "a window begins to close")
                }
                Err(error) => {
                    count += 1;
                    failed.get_or_insert((window.into_value(), error));
                }
            }
        }
        if let Some((Window { key, participant, .. }, error)) = failed {
            return Err(SeriesError::Close { count, key, participant, error: error.into() });
        }
        if is_all {
            // The clock of this database may be behind the one by which the run was begun.
            let slot = windows.page(open_until::<S>(ctx.slot())).await?.rows;
            let Some(next) = slot.iter().map(|window| window.cutoff).min() else { return Ok(()) };
            if ctx.is_overtaken().await.unwrap_or(false) {
                // The later run waits for them, too.
                return Ok(());
            }
            let left = (next - now).to_std().unwrap_or_default();
            tokio::time::sleep(left.min(LONGEST_LOOK)).await;
        }
    }
}

/// The windows that are open although their cutoff is not after this instant.
fn open_until<S: WindowSeries>(instant: DateTime<Utc>) -> PageRequest<Window> {
    let open = Window::SERIES.eq(S::NAME) & Window::STATE.eq(WindowState::Open);
    PageRequest::first(PAGE).filter(open & Window::CUTOFF.le(instant))
}
