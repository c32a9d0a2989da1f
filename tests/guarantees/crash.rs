//! A PostgreSQL server that is killed while many tasks commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ekbatan::action::Outcome;
use ekbatan::db::ActionId;
use ekbatan::prelude::*;
use ekbatan_testkit::PostgresServer;
use support::wallet::{Deposit, DepositMoney, Wallet};
use tokio::task::JoinSet;

use crate::ledger::Ledger;

const ROUNDS: usize = 20;
const TASKS: usize = 16;

/// What a caller was answered, as far as it bears on the truth.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Answer {
    Committed,
    NotCommitted,
    Unknown,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_loses_nothing_and_doubles_nothing() {
    let server = PostgresServer::builder().durable().start().await.unwrap();
    let url = server.create_database().await.unwrap();
    let ledger = Arc::new(Ledger::open(&url).await);
    let wallets = Arc::new(ledger.open_wallets(8).await);
    let mut answers: Vec<(ActionId, Answer)> = Vec::new();
    for round in 0..ROUNDS {
        let committed = Arc::new(AtomicUsize::new(0));
        let restarted = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (ledger, wallets) = (ledger.clone(), wallets.clone());
            let (committed, restarted) = (committed.clone(), restarted.clone());
            let seed = (round * TASKS + task) as u64;
            tasks.spawn(async move {
                deposit_through_the_kill(&ledger, &wallets, seed, &committed, &restarted).await
            });
        }
        // Killed in full flight, at another moment in every round.
        while committed.load(Ordering::Relaxed) < 50 + round * 7 {
            tokio::task::yield_now().await;
        }
        server.kill().await.unwrap();
        server.restart().await.unwrap();
        restarted.store(true, Ordering::Relaxed);
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
    assert!(failed > 0, "no kill met a commit");
    ledger.assert_sound(stored.len() - wallets.len()).await;
    assert!(answers.len() > ROUNDS * 50, "{} answers, {unknown} unknown", answers.len());
}

/// Deposits until a call fails, or until the server that was killed is back: whoever's commit
/// was carried over the kill never sees a failure.
async fn deposit_through_the_kill(
    ledger: &Ledger,
    wallets: &[Id<Wallet>],
    seed: u64,
    committed: &AtomicUsize,
    restarted: &AtomicBool,
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
        committed.fetch_add(1, Ordering::Relaxed);
        if answer != Answer::Committed || restarted.load(Ordering::Relaxed) {
            return answers;
        }
    }
}
