//! One round of one mode in one measure.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ekbatan::prelude::Uuid;
use tokio::time::sleep;

use super::broker_site::BrokerSite;
use super::load::{Load, deposit};
use super::mode::{Committer, Depositor};
use super::options::{EventsMeasure, EventsMode, EventsOptions};
use super::recorder::Recorder;
use super::share::Share;
use crate::commit::StartedDatabase;
use crate::failure::Failure;
use crate::statistics::RoundResult;

/// How long deposits are made before the measurement, to prepare statements and choose plans.
const WARM_UP: Duration = Duration::from_millis(500);

/// How long the load is measured before latency is measured at half of it.
const CALIBRATION: Duration = Duration::from_secs(1);

/// How long an idle node is observed at least: it renews itself every three seconds.
const IDLE: Duration = Duration::from_secs(15);

/// The time after which an idle node has reached its longest pause.
const CALM: Duration = Duration::from_secs(3);

/// How long a node that handles nothing may take to end.
const GRACE: Duration = Duration::from_secs(10);

/// The tasks that commit a backlog.
const BACKLOG_TASKS: u32 = 64;

/// The result of a round.
pub struct EventsSample {
    pub result: RoundResult,
    /// Statements that the server executed per second; `None` for SQLite.
    pub queries_per_second: Option<f64>,
}

/// What a round needs. The database is empty but for its wallets.
pub struct Round<'r> {
    pub options: &'r EventsOptions,
    pub database: &'r StartedDatabase,
    /// The broker that events are sent to, if they are.
    pub site: Option<&'r BrokerSite>,
    pub wallets: &'r Arc<[Uuid]>,
    pub mode: EventsMode,
    pub tasks: u32,
    pub recorder: Arc<Recorder>,
}

impl Round<'_> {
    pub async fn measure(&self, measure: EventsMeasure) -> Result<EventsSample, Failure> {
        let most = if measure.has_tasks() { self.tasks.max(1) } else { BACKLOG_TASKS };
        let most = if measure == EventsMeasure::Parked { most.max(BACKLOG_TASKS) } else { most };
        let committer = Committer::open(self.mode, self.database, most).await?;
        let before = self.database.totals().await?;
        let sample = match measure {
            EventsMeasure::Commits => self.commits(&committer).await,
            EventsMeasure::Throughput => self.throughput(&committer).await,
            EventsMeasure::LatencySameNode => self.latency(&committer, Share::Process).await,
            EventsMeasure::LatencyOtherNode => self.latency(&committer, Share::Database).await,
            EventsMeasure::Drain => self.drain(&committer).await,
            EventsMeasure::Idle => self.idle(&committer).await,
            EventsMeasure::Parked => self.parked(&committer).await,
        }?;
        committer.close().await;
        let after = self.database.totals().await?;
        let deposits = i64::try_from(self.recorder.deposits())?;
        let cents = deposits * (deposits + 1) / 2;
        if (after.changes, after.balance) != (before.changes + deposits, before.balance + cents) {
            return Err(format!("the money is wrong after {deposits} deposits of {cents} cents: it was {before:?}, and is {after:?}").into());
        }
        Ok(sample)
    }

    /// Deposits that nothing handles.
    async fn commits(&self, committer: &Committer) -> Result<EventsSample, Failure> {
        let depositors = committer.depositors(self.tasks);
        self.deposit(&depositors, self.wallets, Load::For(WARM_UP)).await?;
        self.database.analyze().await?;
        let count = Count::begin(self.database).await?;
        let times = self.deposit(&depositors, self.wallets, self.closed()).await?;
        let (took, queries_per_second) = count.end(self.database).await?;
        Ok(EventsSample { result: RoundResult::new(times, took), queries_per_second })
    }

    async fn throughput(&self, committer: &Committer) -> Result<EventsSample, Failure> {
        let consumer =
            committer.start_handling(&self.recorder, self.site, Share::Process, None).await?;
        let sample = self.handled(committer, self.wallets, self.closed()).await?;
        consumer.stop(0).await?;
        self.check(0)?;
        Ok(sample)
    }

    async fn latency(&self, committer: &Committer, share: Share) -> Result<EventsSample, Failure> {
        let consumer = committer.start_handling(&self.recorder, self.site, share, None).await?;
        let delivering = match share {
            Share::Process => None,
            Share::Database => committer.deliver().await?,
        };
        let rate = match self.options.rate {
            Some(rate) => f64::from(rate),
            None => {
                let calibration = Load::For(CALIBRATION);
                let full = self.handled(committer, self.wallets, calibration).await?;
                (full.result.per_second / 2.0).max(1.0)
            }
        };
        let paced = Load::Paced(Duration::from_secs_f64(self.options.seconds), rate);
        let sample = self.handled(committer, self.wallets, paced).await?;
        if let Some(node) = delivering {
            node.drain(GRACE).await;
        }
        consumer.stop(0).await?;
        self.check(0)?;
        Ok(sample)
    }

    /// The backlog has what the handlers look for, as if they had been away for a while.
    async fn drain(&self, committer: &Committer) -> Result<EventsSample, Failure> {
        let backlog = u64::from(self.options.backlog);
        self.leave_behind(committer, None, self.wallets).await?;
        let count = Count::begin(self.database).await?;
        let consumer =
            committer.start_handling(&self.recorder, self.site, Share::Database, None).await?;
        self.recorder.wait_for(backlog).await?;
        let (took, queries_per_second) = count.end(self.database).await?;
        consumer.stop(0).await?;
        self.check(0)?;
        let times = vec![Duration::ZERO; usize::try_from(backlog)?];
        Ok(EventsSample { result: RoundResult::new(times, took), queries_per_second })
    }

    async fn idle(&self, committer: &Committer) -> Result<EventsSample, Failure> {
        let consumer =
            committer.start_handling(&self.recorder, self.site, Share::Process, None).await?;
        sleep(CALM).await;
        let count = Count::begin(self.database).await?;
        sleep(IDLE.max(Duration::from_secs_f64(self.options.seconds))).await;
        let (took, queries_per_second) = count.end(self.database).await?;
        consumer.stop(0).await?;
        Ok(EventsSample { result: RoundResult::new(Vec::new(), took), queries_per_second })
    }

    /// One wallet has a backlog that cannot be handled, and the others are used as in `throughput`.
    async fn parked(&self, committer: &Committer) -> Result<EventsSample, Failure> {
        let Some((first, others)) = self.wallets.split_first() else {
            return Err("there is no wallet".into());
        };
        let parks = Some(*first);
        self.leave_behind(committer, parks, &[*first].into()).await?;
        let consumer =
            committer.start_handling(&self.recorder, self.site, Share::Process, parks).await?;
        // What the parked wallet left is never handled.
        let sample = self.handled(committer, &others.into(), self.closed()).await?;
        consumer.stop(u64::from(self.options.backlog)).await?;
        self.check(u64::from(self.options.backlog))?;
        Ok(sample)
    }

    /// Lets the handlers be known, and commits a backlog that nobody handles.
    async fn leave_behind(
        &self,
        committer: &Committer,
        parks: Option<Uuid>,
        wallets: &Arc<[Uuid]>,
    ) -> Result<(), Failure> {
        let consumer =
            committer.start_handling(&self.recorder, self.site, Share::Database, parks).await?;
        consumer.stop(0).await?;
        let delivering = committer.deliver().await?;
        let depositors = committer.depositors(BACKLOG_TASKS);
        let load = Load::Times(u64::from(self.options.backlog));
        self.deposit(&depositors, wallets, load).await?;
        if let Some(node) = delivering {
            node.drain(GRACE).await;
        }
        self.database.tidy().await?;
        self.database.analyze().await
    }

    /// Deposits, and waits until the events are handled. The times are those from the answer of a
    /// deposit to the start of its handler.
    async fn handled(
        &self,
        committer: &Committer,
        wallets: &Arc<[Uuid]>,
        load: Load,
    ) -> Result<EventsSample, Failure> {
        let depositors = committer.depositors(self.tasks);
        let unhandled = self.recorder.deposits() - self.recorder.events_handled();
        self.deposit(&depositors, wallets, Load::For(WARM_UP)).await?;
        self.recorder.wait_for(self.recorder.deposits() - unhandled).await?;
        self.database.analyze().await?;
        let count = Count::begin(self.database).await?;
        let first = self.recorder.deposits();
        self.deposit(&depositors, wallets, load).await?;
        let last = self.recorder.deposits();
        self.recorder.wait_for(last - unhandled).await?;
        let (took, queries_per_second) = count.end(self.database).await?;
        let delays = self.recorder.delays(first..last);
        Ok(EventsSample { result: RoundResult::new(delays, took), queries_per_second })
    }

    async fn deposit(
        &self,
        depositors: &[Depositor],
        wallets: &Arc<[Uuid]>,
        load: Load,
    ) -> Result<Vec<Duration>, Failure> {
        deposit(depositors, wallets, &self.recorder, load).await
    }

    fn closed(&self) -> Load {
        Load::For(Duration::from_secs_f64(self.options.seconds))
    }

    fn check(&self, unhandled: u64) -> Result<(), Failure> {
        self.recorder.check(self.recorder.deposits() - unhandled, self.mode.is_ordered())
    }
}

/// The statements of a while.
struct Count {
    began: Instant,
    before: Option<i64>,
}

impl Count {
    async fn begin(database: &StartedDatabase) -> Result<Self, Failure> {
        let before = database.statements().await?;
        Ok(Self { began: Instant::now(), before })
    }

    /// How long it was, and the statements per second.
    async fn end(self, database: &StartedDatabase) -> Result<(Duration, Option<f64>), Failure> {
        let took = self.began.elapsed();
        let after = database.statements().await?;
        let statements = self.before.zip(after).map(|(before, after)| after - before);
        Ok((took, statements.map(|statements| statements as f64 / took.as_secs_f64())))
    }
}
