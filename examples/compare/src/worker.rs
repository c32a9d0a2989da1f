//! A worker process: a closed loop in each of its tasks.
//!
//! Invariants: a deposit counts as acknowledged only after its call has returned.
//! Latencies include every deposit that began within the window, however late it ended,
//! so the slowest ones are not left out.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ekbatan::prelude::Decimal;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::time::{Instant, sleep, sleep_until};

use crate::contender::Contender;
use crate::ekbatan_strategies::Ekbatan;
use crate::failure::Failure;
use crate::money::CENTS;
use crate::peers;
use crate::processes::{Message, WorkDone, WorkerJob};
use crate::skew::Skew;
use crate::strategy::Family;

/// The interval between progress messages.
const SAID: Duration = Duration::from_millis(200);

pub async fn main() -> ExitCode {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    match run(&mut lines).await {
        Ok((work, contender)) => {
            send(&Message::Finished(work));
            // Wait until all workers have finished. Another worker may wait for a lease
            // that this process still releases in the background.
            while let Ok(Some(_)) = lines.next_line().await {}
            contender.close().await;
            ExitCode::SUCCESS
        }
        Err(error) => {
            send(&Message::Failed(error.to_string()));
            ExitCode::FAILURE
        }
    }
}

async fn run(
    lines: &mut Lines<BufReader<Stdin>>,
) -> Result<(WorkDone, Arc<dyn Contender>), Failure> {
    let line = lines.next_line().await?.unwrap_or_default();
    let job: WorkerJob = serde_json::from_str(&line)?;
    let contender = open(&job).await?;
    let job = Arc::new(job);
    send(&Message::Ready);
    if lines.next_line().await?.is_none() {
        return Err("the parent process exited before the start".into());
    }
    let work = tokio::select! {
        work = deposit(&job, &contender) => work,
        // The parent process has exited.
        _ = lines.next_line() => Err("the parent process exited during the run".into()),
    }?;
    Ok((work, contender))
}

/// Connects the contender that the job asks for.
async fn open(job: &WorkerJob) -> Result<Arc<dyn Contender>, Failure> {
    match job.strategy.family() {
        Family::Ekbatan => Ok(Arc::new(Ekbatan::open(job).await?)),
        Family::Peer => peers::open(job).await,
    }
}

fn send(message: &Message) {
    if let Ok(line) = serde_json::to_string(message) {
        let mut out = std::io::stdout().lock();
        // If the parent has exited, this process exits too, because its stdin closes.
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}

async fn deposit(
    job: &Arc<WorkerJob>,
    contender: &Arc<dyn Contender>,
) -> Result<WorkDone, Failure> {
    let skew = Arc::new(Skew::new(job.wallets.count, job.skew));
    let said = Arc::new(AtomicU64::new(0));
    let begin = Instant::now() + Duration::from_micros(job.warm_up_us);
    let end = begin + Duration::from_micros(job.window_us);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..job.tasks {
        let task = DepositLoop {
            job: job.clone(),
            contender: contender.clone(),
            skew: skew.clone(),
            deposits: said.clone(),
            random: fastrand::Rng::with_seed(job.seed ^ (u64::from(task) << 32)),
            begin,
            end,
        };
        tasks.spawn(task.deposit());
    }
    let clock = tokio::spawn(tell(said, begin, end));
    let mut work = WorkDone::default();
    while let Some(ended) = tasks.join_next().await {
        work.merge(&ended??);
    }
    clock.await?;
    Ok(work)
}

/// Reports the time and the number of deposits to the parent.
async fn tell(deposits: Arc<AtomicU64>, begin: Instant, end: Instant) {
    let (mut begun, mut next) = (false, Instant::now() + SAID);
    loop {
        let now = Instant::now();
        if !begun && now >= begin {
            begun = true;
            send(&Message::Began);
        }
        if now >= end {
            send(&Message::Deposits(deposits.swap(0, Ordering::Relaxed)));
            send(&Message::Ended);
            return;
        }
        if now >= next {
            send(&Message::Deposits(deposits.swap(0, Ordering::Relaxed)));
            next = now + SAID;
        }
        let wake = if begun { end } else { begin };
        sleep_until(wake.min(next)).await;
    }
}

/// The loop of one task.
struct DepositLoop {
    job: Arc<WorkerJob>,
    contender: Arc<dyn Contender>,
    skew: Arc<Skew>,
    deposits: Arc<AtomicU64>,
    random: fastrand::Rng,
    begin: Instant,
    end: Instant,
}

impl DepositLoop {
    async fn deposit(mut self) -> Result<WorkDone, Failure> {
        let (amount, think) = (Decimal::new(CENTS, 2), Duration::from_micros(self.job.think_us));
        let mut work = WorkDone { slowest: Some(0), ..WorkDone::default() };
        loop {
            let asked = Instant::now();
            if asked >= self.end {
                break;
            }
            let wallet = self.job.wallets.id(self.skew.draw(&mut self.random));
            let attempts = self.contender.deposit(wallet, amount).await?;
            let done = Instant::now();
            work.acknowledged += 1;
            self.deposits.fetch_add(1, Ordering::Relaxed);
            if asked >= self.begin {
                work.begun += 1;
                work.attempts += u64::from(attempts);
                let micros = u64::try_from((done - asked).as_micros()).unwrap_or(u64::MAX);
                work.latencies.record(micros);
            }
            if (self.begin..self.end).contains(&done) {
                work.actions += 1;
            }
            if !think.is_zero() {
                sleep(think).await;
            }
        }
        work.slowest = Some(work.actions);
        Ok(work)
    }
}
