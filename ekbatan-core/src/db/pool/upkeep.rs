//! The background task of a pool: it closes connections that are idle too long or too old, keeps
//! `minimum_idle` connections open, and reports holders that hold a connection too long.
//!
//! One task per pool, which ends with the pool. If it ends before, with its runtime, the next
//! caller starts it again in its own. It runs four times within the shortest configured
//! time, but at most every 20 ms, and at least every 30 seconds. No task runs if nothing is configured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool::managed::{self, Timeouts, WeakPool};
use tokio::task::AbortHandle;

use super::holders::Holders;
use super::manager::ConnectionManager;
use crate::config::DataSourceConfig;

/// The handle of the task; dropping it ends the task.
pub(super) struct Upkeep(Option<Running>);

struct Running {
    task: UpkeepTask,
    period: Duration,
    runs: Arc<AtomicBool>,
    handle: Mutex<AbortHandle>,
}

/// Notes the end of the task.
struct RunsGuard(Arc<AtomicBool>);

impl Drop for RunsGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Upkeep {
    pub(super) fn start(
        pool: &managed::Pool<ConnectionManager>,
        holders: &Holders,
        address: &Arc<str>,
        config: &DataSourceConfig,
    ) -> Self {
        let Some(period) = period(config) else { return Self(None) };
        let task = UpkeepTask {
            // Weak, so that the task does not keep a dropped pool alive.
            pool: pool.weak(),
            holders: holders.clone(),
            address: address.clone(),
            idle_timeout: config.idle_timeout,
            minimum_idle: config.minimum_idle,
            leak_threshold: config.leak_detection_threshold,
        };
        let runs = Arc::new(AtomicBool::new(true));
        let Some(first) = task.copy() else { return Self(None) };
        let handle = Mutex::new(first.spawn(period, &runs));
        Self(Some(Running { task, period, runs, handle }))
    }

    /// Starts the task again if its runtime has ended.
    pub(super) fn keep_running(&self) {
        let Some(Running { task, period, runs, handle }) = &self.0 else { return };
        if runs.load(Ordering::Acquire) || runs.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(next) = task.copy() else { return };
        let started = next.spawn(*period, runs);
        *handle.lock().unwrap_or_else(PoisonError::into_inner) = started;
    }

    pub(super) fn stop(&self) {
        if let Some(Running { handle, .. }) = &self.0 {
            handle.lock().unwrap_or_else(PoisonError::into_inner).abort();
        }
    }

    #[cfg(all(test, feature = "sqlite"))]
    pub(super) fn task(&self) -> Option<AbortHandle> {
        let running = self.0.as_ref()?;
        Some(running.handle.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The pause between two runs; `None` if nothing is configured.
fn period(config: &DataSourceConfig) -> Option<Duration> {
    let times = [config.idle_timeout, config.max_lifetime, config.leak_detection_threshold];
    let shortest = times.into_iter().filter(|time| !time.is_zero()).min();
    if shortest.is_none() && config.minimum_idle == 0 {
        return None;
    }
    let least = Duration::from_millis(20);
    Some(shortest.map_or(Duration::MAX, |time| time / 4).clamp(least, Duration::from_secs(30)))
}

struct UpkeepTask {
    pool: WeakPool<ConnectionManager>,
    holders: Holders,
    address: Arc<str>,
    idle_timeout: Duration,
    minimum_idle: usize,
    leak_threshold: Duration,
}

impl UpkeepTask {
    /// `None` if the pool is gone.
    fn copy(&self) -> Option<Self> {
        Some(Self {
            pool: self.pool.upgrade()?.weak(),
            holders: self.holders.clone(),
            address: self.address.clone(),
            ..*self
        })
    }

    /// Must be called within a runtime. `runs` is true until the task ends.
    fn spawn(self, period: Duration, runs: &Arc<AtomicBool>) -> AbortHandle {
        let guard = RunsGuard(runs.clone());
        let task = tokio::spawn(async move {
            let _guard = guard;
            while self.run_once().await.is_some() {
                tokio::time::sleep(period).await;
            }
        });
        task.abort_handle()
    }

    /// `None` once the pool is gone.
    async fn run_once(&self) -> Option<()> {
        self.report_overdue();
        let pool = self.pool.upgrade().filter(|pool| !pool.is_closed())?;
        self.close_idle_and_expired(&pool);
        self.fill(&pool).await;
        Some(())
    }

    fn report_overdue(&self) {
        if self.leak_threshold.is_zero() {
            return;
        }
        for (holder, held) in self.holders.newly_overdue(self.leak_threshold) {
            tracing::warn!(
                holder,
                ?held,
                pool = &*self.address,
                "a connection is held for longer than leak-detection-threshold"
            );
        }
    }

    fn close_idle_and_expired(&self, pool: &managed::Pool<ConnectionManager>) {
        let mut closable = pool.status().available.saturating_sub(self.minimum_idle);
        // The longest idle connection comes first, because the one used last is lent first.
        let closed = pool.retain(|entry, _| {
            let is_idle_too_long = !self.idle_timeout.is_zero()
                && Instant::now().duration_since(entry.idle_since) >= self.idle_timeout;
            let close = entry.is_expired() || (is_idle_too_long && closable > 0);
            if close {
                closable = closable.saturating_sub(1);
            }
            !close
        });
        if !closed.removed.is_empty() {
            tracing::debug!(
                connections = closed.removed.len(),
                pool = &*self.address,
                "closed connections that were idle too long or too old"
            );
        }
    }

    /// Opens connections until `minimum_idle` are idle. Each is opened outside of the pool, so
    /// that a slow server does not block callers that could have an idle connection.
    async fn fill(&self, pool: &managed::Pool<ConnectionManager>) {
        loop {
            let status = pool.status();
            if status.available >= self.minimum_idle || status.size >= status.max_size {
                return;
            }
            let manager = pool.manager();
            match manager.connect().await {
                Ok(entry) => *manager.spare() = Some(entry),
                Err(error) => {
                    tracing::debug!(%error, pool = &*self.address, "no connection to keep idle");
                    return;
                }
            }
            // The pool creates an entry only when no idle one is left. So all idle entries are
            // taken until it creates one from the spare, and then given back at once.
            let at_once = Timeouts { wait: Some(Duration::ZERO), ..Timeouts::default() };
            let mut loans = Vec::new();
            while manager.spare().is_some() {
                match pool.timeout_get(&at_once).await {
                    Ok(loan) => loans.push(loan),
                    Err(_) => break,
                }
            }
            if manager.spare().take().is_some() {
                return; // the pool reached its maximum size meanwhile
            }
        }
    }
}
