//! What a worker commits.

use std::time::Duration;

use ekbatan::prelude::*;
use support::worker_process::report;

use super::Report;
use crate::accounts::{self, Credit, Crediting};
use crate::history::Answer;
use crate::requests::{Cancellable, Manner, Serve, Wish};

/// How many calls a worker has under way.
const TASKS: usize = 2;

/// How many keys the calls of a shard share, of each kind.
const KEYS: usize = 3;

/// The executors of a worker, with and without its nodes.
#[derive(Clone)]
pub struct Executors {
    pub executor: ActionExecutor,
    /// Its commits know no nodes: others find their events and calls.
    pub bare: ActionExecutor,
}

/// Credits accounts until so many calls are committed.
pub async fn commit(
    executors: Executors,
    accounts: Vec<Uuid>,
    calls: usize,
    mut random: fastrand::Rng,
) {
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let executors = executors.clone();
        let accounts = accounts.clone();
        let mut committing = Committing {
            credit: Credit(Serve::new(executors.executor.databases())),
            executors,
            random: random.fork(),
            cancellable: None,
        };
        let share = (calls + task) / TASKS;
        tasks.spawn(async move {
            let (mut account, mut is_bare) = (committing.random.usize(..accounts.len()), false);
            for _ in 0..share {
                // Several versions one after another are claimed as they are committed.
                if committing.random.u8(..3) == 0 {
                    account = committing.random.usize(..accounts.len());
                    is_bare = committing.random.u8(..4) == 0;
                }
                while !committing.credit(accounts[account], is_bare).await {
                    // A server that is down: another try that does not keep the processor busy.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

/// A task that commits one call after another.
struct Committing {
    credit: Credit,
    executors: Executors,
    random: fastrand::Rng,
    /// A call that was enqueued and may be cancelled.
    cancellable: Option<Cancellable>,
}

impl Committing {
    /// Whether the call is answered as committed.
    async fn credit(&mut self, account: Uuid, is_bare: bool) -> bool {
        let crediting = self.choose(account);
        let has_cancelled = crediting.cancelled.is_some();
        let executor = if is_bare { &self.executors.bare } else { &self.executors.executor };
        let call = executor.execute(&self.credit, crediting);
        let action = call.action_id().to_string();
        let answered = call.await;
        let answer = match &answered {
            Ok(_) => Answer::Committed,
            Err(ExecuteError::CommitUnknown { .. }) => Answer::Unknown,
            Err(_) => Answer::NotCommitted,
        };
        report(&Report::Answered { action, answer });
        let Ok(enqueued) = answered else { return false };
        if has_cancelled {
            self.cancellable = None;
        }
        let last = enqueued.into_iter().rfind(|call| call.key.starts_with(CANCELLABLE));
        self.cancellable = last.or(self.cancellable.take());
        true
    }

    /// What the next commit does. Each try does something else.
    fn choose(&mut self, account: Uuid) -> Crediting {
        let shard = ShardedId::<accounts::Account>::from_uuid(account).shard();
        let shard = shard.map(accounts::number).expect("the id of an account has a shard");
        let random = &mut self.random;
        let on_shard = self.cancellable.iter().find(|call| call.shard == shard).cloned();
        let cancelled = on_shard.filter(|_| random.u8(..3) < 2);
        let mut wishes = Vec::new();
        if let Some(cancelled) = cancelled.as_ref().filter(|_| random.u8(..3) == 0) {
            // Another call takes its place.
            let after = Duration::from_millis(random.u64(..150));
            wishes.push(Wish { manner: Manner::Cancellable, key: cancelled.key.clone(), after });
        }
        // Half of the commits enqueue nothing else.
        for _ in 0..random.usize(..6).saturating_sub(2).min(2) {
            wishes.push(wish(shard, random));
        }
        let fails = random.u8(..10) == 0;
        Crediting { account, wishes, cancelled, fails }
    }
}

/// How the keys of calls begin that can be cancelled.
const CANCELLABLE: &str = "cancellable";

/// A call at random.
fn wish(shard: usize, random: &mut fastrand::Rng) -> Wish {
    let manner = Manner::ALL[random.usize(..Manner::ALL.len())];
    let key = random.usize(..KEYS);
    let key = match manner {
        Manner::Plain | Manner::Chained => String::new(),
        Manner::Unique => format!("unique {key} of {shard}"),
        Manner::InTurn => format!("turn {key} of {shard}"),
        Manner::Cancellable => format!("{CANCELLABLE} {}", Uuid::now_v7()),
    };
    // Those that wait for a while are found by others with their key, or are cancelled.
    let longest = match manner {
        Manner::Unique | Manner::Cancellable => 150,
        _ => 20,
    };
    let waits = random.bool();
    let after = Duration::from_millis(if waits { random.u64(1..longest) } else { 0 });
    Wish { manner, key, after }
}
