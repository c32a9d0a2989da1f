//! Deposits by several tasks at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use ekbatan::prelude::Uuid;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::mode::Depositor;
use super::recorder::Recorder;
use crate::commit::Random;
use crate::failure::Failure;

/// How long and how fast deposits are made.
#[derive(Clone, Copy)]
pub enum Load {
    /// Each task deposits again as soon as it has an answer.
    For(Duration),
    /// All tasks together make so many.
    Times(u64),
    /// All tasks together make so many per second, if they can.
    Paced(Duration, f64),
}

/// Deposits into random wallets. Returns the times of all deposits.
pub async fn deposit(
    depositors: &[Depositor],
    wallets: &Arc<[Uuid]>,
    recorder: &Arc<Recorder>,
    load: Load,
) -> Result<Vec<Duration>, Failure> {
    let begin = Instant::now();
    let left = Arc::new(AtomicI64::new(match load {
        Load::Times(times) => i64::try_from(times)?,
        Load::For(_) | Load::Paced(..) => i64::MAX,
    }));
    let mut tasks = JoinSet::new();
    for (n, depositor) in depositors.iter().enumerate() {
        let pace = match load {
            Load::Paced(_, rate) => {
                let every = Duration::from_secs_f64(depositors.len() as f64 / rate);
                // The tasks take turns.
                Some((begin + every.mul_f64(n as f64 / depositors.len() as f64), every))
            }
            Load::For(_) | Load::Times(_) => None,
        };
        let end = match load {
            Load::For(time) | Load::Paced(time, _) => Some(begin + time),
            Load::Times(_) => None,
        };
        let task = DepositTask {
            depositor: depositor.clone(),
            wallets: wallets.clone(),
            recorder: recorder.clone(),
            left: left.clone(),
            end,
            pace,
        };
        tasks.spawn(task.run());
    }
    let mut times = Vec::new();
    while let Some(of_task) = tasks.join_next().await {
        times.append(&mut of_task??);
    }
    Ok(times)
}

struct DepositTask {
    depositor: Depositor,
    wallets: Arc<[Uuid]>,
    recorder: Arc<Recorder>,
    left: Arc<AtomicI64>,
    end: Option<Instant>,
    /// When the next deposit is due, and the time between two of them.
    pace: Option<(Instant, Duration)>,
}

impl DepositTask {
    async fn run(mut self) -> Result<Vec<Duration>, Failure> {
        let mut random = Random::new();
        let mut times = Vec::new();
        loop {
            if let Some((due, every)) = &mut self.pace {
                sleep_until(*due).await;
                *due += *every;
            }
            let begin = Instant::now();
            let is_over = self.end.is_some_and(|end| begin >= end);
            if is_over || self.left.fetch_sub(1, Relaxed) <= 0 {
                return Ok(times);
            }
            let wallet = self.wallets[random.below(self.wallets.len())];
            let serial = self.recorder.next()?;
            self.depositor.deposit(wallet, Recorder::amount(serial)).await?;
            self.recorder.answered(serial);
            times.push(begin.elapsed());
        }
    }
}
