//! The handlers of a worker.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ekbatan::events::{Delivered, EventHandler, HandlerContext};
use ekbatan::prelude::*;
use ekbatan::repository::{Direction, PageRequest};
use support::worker_process::report;
use tokio::sync::Notify;

use super::{BY_STEP, HeldRun, ORDERED, Report, RunKind, UNORDERED};
use crate::accounts::{self, AccountEvent, Entry, Post, SHARDS};

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What the runs of a worker share.
pub struct Runs {
    random: Mutex<fastrand::Rng>,
    /// The next run of this kind waits before its commit.
    hold: Mutex<Option<RunKind>>,
    go_on: Notify,
    /// How many runs there are now, by the handler and the event.
    running: Mutex<HashMap<(&'static str, Uuid), usize>>,
}

impl Runs {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
            hold: Mutex::default(),
            go_on: Notify::new(),
            running: Mutex::default(),
        })
    }

    pub fn random(&self, below: u64) -> u64 {
        self.random.lock().unwrap().u64(..below)
    }

    /// Some runs fail or panic before their effect, and some take longer.
    pub async fn meet_fate(&self) -> Result<(), Failure> {
        match self.random(100) {
            0 => return Err("at random".into()),
            // A panic without a message on the standard error.
            1 => std::panic::resume_unwind(Box::new("at random")),
            2..20 => tokio::time::sleep(Duration::from_micros(self.random(5_000))).await,
            _ => {}
        }
        Ok(())
    }

    /// Some runs fail although their effect is committed.
    pub fn fail_afterwards(&self) -> Result<(), Failure> {
        match self.random(100) {
            0 => Err("after the commit".into()),
            _ => Ok(()),
        }
    }

    pub fn hold_next(&self, kind: RunKind) {
        *self.hold.lock().unwrap() = Some(kind);
    }

    /// Waits, if the test wants a run of this kind to do so.
    pub async fn wait_if_held(&self, run: HeldRun) {
        let kind = run.kind();
        if self.hold.lock().unwrap().take_if(|wanted| *wanted == kind).is_some() {
            report(&Report::Held(run));
            self.go_on.notified().await;
        }
    }

    pub fn go_on(&self) {
        self.go_on.notify_one();
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
    type Error = Failure;

    async fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        event: &Delivered<AccountEvent>,
    ) -> Result<(), Self::Error> {
        let runs = &*self.0;
        let _running = Running::begin(runs, (Self::NAME, event.id));
        runs.meet_fate().await?;
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
        let (handler, id) = (Self::NAME.to_owned(), event.id.to_string());
        runs.wait_if_held(HeldRun::Delivery { handler, event: id, shard: of_event }).await;
        if HOW == BY_STEP {
            ctx.step("post", &Post, posting).await?;
        } else {
            ctx.finish(&Post, posting).await?;
        }
        runs.fail_afterwards()
    }
}

/// The greatest version of an account, before that of an event, whose entry of a handler is there.
async fn version_before(
    databases: &Databases,
    shard: usize,
    handler: &str,
    event: &Delivered<AccountEvent>,
) -> Result<i64, Failure> {
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
