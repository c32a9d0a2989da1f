//! The handlers of a worker.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ekbatan::events::{Delivered, EventHandler, HandlerContext};
use ekbatan::prelude::*;
use ekbatan::repository::{Direction, PageRequest};
use support::worker_process::report;
use tokio::sync::Notify;

use super::{BY_STEP, HeldRun, ORDERED, Report, UNORDERED};
use crate::accounts::{self, AccountEvent, Entry, Post, SHARDS};

/// What the handlers of a worker share.
pub struct Runs {
    pub random: Mutex<fastrand::Rng>,
    /// Whether the next run waits before its commit.
    pub hold: AtomicBool,
    pub go_on: Notify,
    /// How many runs there are now, by the handler and the event.
    running: Mutex<HashMap<(&'static str, Uuid), usize>>,
}

impl Runs {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
            hold: AtomicBool::new(false),
            go_on: Notify::new(),
            running: Mutex::default(),
        })
    }

    fn random(&self, below: u64) -> u64 {
        self.random.lock().unwrap().u64(..below)
    }
}

/// A run that is under way.
struct Running<'r> {
    runs: &'r Runs,
    key: (&'static str, Uuid),
}

impl<'r> Running<'r> {
    fn begin(runs: &'r Runs, key: (&'static str, Uuid)) -> Self {
        let mut running = runs.running.lock().unwrap();
        let count = running.entry(key).or_default();
        *count += 1;
        if *count > 1 {
            report(&Report::BesideItself);
        }
        drop(running);
        Self { runs, key }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut running = self.runs.running.lock().unwrap();
        let left = running.remove(&self.key).unwrap_or_default() - 1;
        if left > 0 {
            running.insert(self.key, left);
        }
    }
}

/// Adds an entry for each event.
pub struct Posting<const HOW: u8>(pub Arc<Runs>);

impl<const HOW: u8> EventHandler for Posting<HOW> {
    const NAME: &'static str = match HOW {
        ORDERED => "entries.post",
        UNORDERED => "entries.post_unordered",
        _ => "entries.post_by_step",
    };
    type Event = AccountEvent;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    async fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        event: &Delivered<AccountEvent>,
    ) -> Result<(), Self::Error> {
        let runs = &*self.0;
        let _running = Running::begin(runs, (Self::NAME, event.id));
        match runs.random(100) {
            0 => return Err("at random".into()),
            // A panic without a message on the standard error.
            1 => std::panic::resume_unwind(Box::new("at random")),
            2..20 => tokio::time::sleep(Duration::from_micros(runs.random(5_000))).await,
            _ => {}
        }
        let of_event = accounts::number(event.shard);
        let shard = if HOW == BY_STEP { (of_event + 1) % SHARDS } else { of_event };
        let posting = accounts::Posting {
            shard,
            handler: Self::NAME.to_owned(),
            event: event.id,
            account: event.model_id.clone(),
            version: event.model_version.ok_or("an event without a version")?,
            // A step is repeated with the same parameters, also after it has added its entry.
            after: version_before(ctx.executor().databases(), shard, Self::NAME, event).await?,
        };
        if runs.hold.swap(false, Ordering::SeqCst) {
            let (handler, event) = (Self::NAME.to_owned(), event.id.to_string());
            report(&Report::Held(HeldRun { handler, event, shard: of_event }));
            runs.go_on.notified().await;
        }
        if HOW == BY_STEP {
            ctx.step("post", &Post, posting).await?;
        } else {
            ctx.execute(&Post, posting).await?;
        }
        match runs.random(100) {
            0 => Err("after the commit".into()),
            _ => Ok(()),
        }
    }
}

/// The greatest version of an account, before that of an event, whose entry of a handler is there.
async fn version_before(
    databases: &Databases,
    shard: usize,
    handler: &str,
    event: &Delivered<AccountEvent>,
) -> Result<i64, Box<dyn std::error::Error + Send + Sync>> {
    let shard = databases.shard(accounts::shard(shard))?;
    let version = event.model_version.ok_or("an event without a version")?;
    let before = Entry::ACCOUNT.eq(&*event.model_id)
        & Entry::HANDLER.eq(handler)
        & Entry::ACCOUNT_VERSION.lt(version);
    let last = PageRequest::first(1)
        .filter(before)
        .order_by(Entry::ACCOUNT_VERSION, Direction::Descending);
    let last = databases.repository::<Entry>().on_shard(&shard).page(last).await?;
    Ok(last.rows.first().map_or(0, |entry| entry.account_version))
}
