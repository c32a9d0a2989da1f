//! A PostgreSQL server that is killed while many tasks commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::action::Outcome;
use ekbatan::db::ActionId;
use ekbatan::prelude::*;
use ekbatan_testkit::PostgresServer;
use support::soak::rounds;
use support::wallet::{Deposit, DepositMoney, Wallet};
use support::{ScratchDatabase, until};
use tokio::task::JoinSet;

use crate::ledger::Ledger;

const TASKS: usize = 16;

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Answer {
    Committed,
    NotCommitted,
    Unknown,
}

/// The progress of one round.
#[derive(Default)]
struct Round {
    answered: AtomicUsize,
    failed: AtomicBool,
    restarted: AtomicBool,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_neither_loses_nor_repeats_a_commit_on_postgres() {
    let server = PostgresServer::builder().durable().start().await.unwrap();
    let url = server.create_database().await.unwrap();
    let wallets = Arc::new(Ledger::open(&url).await.open_wallets(8).await);
    // The default would prolong the outage of the first round.
    let config = ScratchDatabase::config_of(&url).connection_timeout(Duration::from_secs(5));
    let ledger = Arc::new(Ledger::impatient(config).await);
    let mut answers: Vec<(ActionId, Answer)> = Vec::new();
    let rounds = rounds(6, 40);
    for round in 0..rounds {
        let round_state = Arc::new(Round::default());
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (ledger, wallets) = (ledger.clone(), wallets.clone());
            let round_state = round_state.clone();
            let seed = (round * TASKS + task) as u64;
            tasks.spawn(async move {
                deposit_until_failure_or_restart(&ledger, &wallets, seed, &round_state).await
            });
        }
        // Each round kills the server after another number of calls, while all tasks commit.
        until("calls are answered", async || {
            round_state.answered.load(Ordering::Relaxed) >= 50 + round * 7
        })
        .await;
        server.kill().await.unwrap();
        if round == 0 {
            // In the other rounds the restart may be quick enough to settle every call.
            until("a call fails", async || round_state.failed.load(Ordering::Relaxed)).await;
        }
        server.restart().await.unwrap();
        round_state.restarted.store(true, Ordering::Relaxed);
        answers.extend(tasks.join_all().await.into_iter().flatten());
    }
    let stored = ledger.rows_per_action().await;
    let mut unknown = 0;
    for (id, answer) in &answers {
        let rows = stored.get(&id.0).copied().unwrap_or(0);
        match answer {
            Answer::Committed => assert_eq!(rows, 1, "{id} was answered success"),
            Answer::NotCommitted => assert_eq!(rows, 0, "{id} was answered failure"),
            Answer::Unknown => {
                unknown += 1;
                let outcome = ledger.executor.outcome(*id).await.unwrap();
                assert_eq!(
                    rows,
                    usize::from(outcome == Outcome::Committed),
                    "{id} was resolved wrongly"
                );
            }
        }
    }
    let failed = answers.iter().filter(|(_, answer)| *answer != Answer::Committed).count();
    assert!(failed > 0, "no call failed");
    ledger.assert_sound(stored.len() - wallets.len()).await;
    assert!(answers.len() > rounds * 50, "{} answers, {unknown} unknown", answers.len());
}

/// Deposits until a call fails or the server has restarted. A lane may settle a commit after the
/// restart, so that its caller sees no failure.
async fn deposit_until_failure_or_restart(
    ledger: &Ledger,
    wallets: &[Id<Wallet>],
    seed: u64,
    round: &Round,
) -> Vec<(ActionId, Answer)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut answers = Vec::new();
    loop {
        let deposit =
            Deposit { wallet: wallets[random.usize(..wallets.len())], amount: Decimal::ONE };
        let call = ledger.executor.execute(&DepositMoney, deposit);
        let id = call.action_id();
        let answer = match call.await {
            Ok(_) => Answer::Committed,
            Err(ExecuteError::CommitUnknown { .. }) => Answer::Unknown,
            Err(_) => Answer::NotCommitted,
        };
        answers.push((id, answer));
        round.answered.fetch_add(1, Ordering::Relaxed);
        if answer != Answer::Committed {
            round.failed.store(true, Ordering::Relaxed);
            return answers;
        }
        if round.restarted.load(Ordering::Relaxed) {
            return answers;
        }
    }
}
