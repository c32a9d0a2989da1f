//! What is done for a pool while nobody looks: connections that are idle for too long or too
//! old are closed, the wanted few are kept open, and whoever holds one for too long is
//! reported.
//!
//! One task a pool, which ends with it. It wakes a few times within the shortest time that it
//! looks after, and at most every half minute; there is none where nothing is wanted.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use deadpool::managed::{self, Timeouts, WeakPool};
use tokio::task::AbortHandle;

use super::{Holders, Manager};
use crate::config::DataSourceConfig;

/// The task; dropping this ends it.
pub(super) struct Upkeep(Option<AbortHandle>);

impl Upkeep {
    pub(super) fn start(
        pool: &managed::Pool<Manager>,
        holders: &Holders,
        address: &Arc<str>,
        config: &DataSourceConfig,
    ) -> Self {
        let Some(period) = period(config) else { return Self(None) };
        let duties = Duties {
            // Weak, so that a pool that is dropped is not kept by who looks after it.
            pool: pool.weak(),
            holders: holders.clone(),
            address: address.clone(),
            idle_timeout: config.idle_timeout,
            minimum_idle: config.minimum_idle,
            leak_threshold: config.leak_detection_threshold,
        };
        let task = tokio::spawn(async move {
            while duties.round().await.is_some() {
                tokio::time::sleep(period).await;
            }
        });
        Self(Some(task.abort_handle()))
    }

    pub(super) fn stop(&self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.stop();
    }
}

/// How often there is something to look at; never, if nothing is looked after.
fn period(config: &DataSourceConfig) -> Option<Duration> {
    let times = [config.idle_timeout, config.max_lifetime, config.leak_detection_threshold];
    let shortest = times.into_iter().filter(|time| !time.is_zero()).min();
    if shortest.is_none() && config.minimum_idle == 0 {
        return None;
    }
    let least = Duration::from_millis(20);
    Some(shortest.map_or(Duration::MAX, |time| time / 4).clamp(least, Duration::from_secs(30)))
}

struct Duties {
    pool: WeakPool<Manager>,
    holders: Holders,
    address: Arc<str>,
    idle_timeout: Duration,
    minimum_idle: usize,
    leak_threshold: Duration,
}

impl Duties {
    /// None: the pool is gone.
    async fn round(&self) -> Option<()> {
        self.report();
        let pool = self.pool.upgrade().filter(|pool| !pool.is_closed())?;
        self.close_old(&pool);
        self.fill(&pool).await;
        Some(())
    }

    fn report(&self) {
        if self.leak_threshold.is_zero() {
            return;
        }
        let mut overdue = Vec::new();
        for holder in self.holders.lock().unwrap_or_else(PoisonError::into_inner).values_mut() {
            let held = holder.since.elapsed();
            if !holder.reported && held >= self.leak_threshold {
                holder.reported = true;
                overdue.push((holder.name, held));
            }
        }
        for (holder, held) in overdue {
            tracing::warn!(
                holder,
                ?held,
                pool = &*self.address,
                "a connection is held for longer than leak-detection-threshold"
            );
        }
    }

    fn close_old(&self, pool: &managed::Pool<Manager>) {
        let mut spared = pool.status().available.saturating_sub(self.minimum_idle);
        // The longest unused stands first, as the one used last is lent first.
        let closed = pool.retain(|session, _| {
            let unused = !self.idle_timeout.is_zero()
                && Instant::now().duration_since(session.idle_since) >= self.idle_timeout;
            let close = session.is_expired() || (unused && spared > 0);
            if close {
                spared = spared.saturating_sub(1);
            }
            !close
        });
        if !closed.removed.is_empty() {
            tracing::debug!(
                connections = closed.removed.len(),
                pool = &*self.address,
                "closed connections that were unused or old"
            );
        }
    }

    /// Opens connections until enough are idle. Each is opened outside of the pool, so that
    /// a server which takes its time holds up nobody who could have an idle one.
    async fn fill(&self, pool: &managed::Pool<Manager>) {
        loop {
            let status = pool.status();
            if status.available >= self.minimum_idle || status.size >= status.max_size {
                return;
            }
            let manager = pool.manager();
            match manager.driver.connect(manager.route).await {
                Ok(connection) => *manager.spare() = Some(connection),
                Err(error) => {
                    tracing::debug!(%error, pool = &*self.address, "no connection to keep idle");
                    return;
                }
            }
            // The pool takes a new connection only when no idle one is left; those are
            // given back together with it, at once.
            let now = Timeouts { wait: Some(Duration::ZERO), ..Timeouts::default() };
            let mut loans = Vec::new();
            while manager.spare().is_some() {
                match pool.timeout_get(&now).await {
                    Ok(loan) => loans.push(loan),
                    Err(_) => break,
                }
            }
            if manager.spare().take().is_some() {
                return; // others took all that there may be
            }
        }
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests;
