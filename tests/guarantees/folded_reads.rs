//! Reads by id that share statements: what each of them sees.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use ekbatan::db::Transaction;
use ekbatan::prelude::*;
use ekbatan::repository::{ReadError, Repository, WriteError};
use futures_util::future::{join_all, try_join_all};
use support::soak::rounds;
use support::wallet::Wallet;
use support::{Dialect, ScratchDatabase};
use tokio::task::JoinSet;

use crate::bounded;
use crate::ledger::Ledger;

on_every_database! {
    each_reader_gets_its_own_row,
    a_read_sees_every_commit_that_had_returned,
    reads_in_a_transaction_see_its_writes,
}

pub fn wallets(ledger: &Ledger) -> Repository<Wallet> {
    ledger.databases.repository()
}

/// Asks for all rows at the same moment.
pub async fn read_all(
    wallets: &Repository<Wallet>,
    ids: &[Id<Wallet>],
) -> Result<Vec<Stored<Wallet>>, ReadError> {
    try_join_all(ids.iter().map(|id| wallets.get(*id))).await
}

async fn each_reader_gets_its_own_row(dialect: Dialect) {
    let ledger = Arc::new(Ledger::new(dialect).await);
    // More rows than one statement has ids.
    let mut ids = ledger.open_wallets(150).await;
    for deleted in ids.drain(..10).collect::<Vec<_>>() {
        let wallet = wallets(&ledger).get(deleted).await.unwrap();
        let sql = format!("UPDATE wallets SET state = 'DELETED' WHERE id = '{}'", wallet.id);
        ScratchDatabase::at(ledger.url()).execute(&sql).await;
        assert!(wallets(&ledger).find(deleted).await.unwrap().is_none());
        ids.push(deleted);
    }
    let missing: Vec<Id<Wallet>> = (0..10).map(|_| Id::new()).collect();
    let owner = |n: usize| (n < 140).then(|| format!("owner {}", n + 10));
    let expected: Vec<(Id<Wallet>, Option<String>)> =
        ids.iter().chain(&missing).enumerate().map(|(n, id)| (*id, owner(n))).collect();
    let expected = Arc::new(expected);
    let mut readers = JoinSet::new();
    for seed in 0..8 {
        let (ledger, expected) = (ledger.clone(), expected.clone());
        readers.spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..rounds(20, 200) {
                // Some ids several times, and the hot ones by many readers.
                let wanted: Vec<usize> = (0..40)
                    .map(|n| if n % 2 == 0 { random.usize(..expected.len()) } else { n % 5 })
                    .collect();
                let wallets = wallets(&ledger);
                let reads = wanted.iter().map(|n| wallets.find(expected[*n].0));
                for (n, found) in wanted.iter().zip(join_all(reads).await) {
                    let (id, owner) = &expected[*n];
                    let found = found.unwrap();
                    assert!(found.as_ref().is_none_or(|wallet| wallet.id == *id));
                    assert_eq!(found.map(|wallet| wallet.owner.clone()), *owner);
                }
            }
        });
    }
    bounded("all readers", readers.join_all()).await;
    ledger.assert_nothing_held();
}

/// Readers note the version that was committed for certain before they ask, and what they have
/// seen: no answer may be older than either.
async fn a_read_sees_every_commit_that_had_returned(dialect: Dialect) {
    const WALLETS: usize = 4;
    let ledger = Arc::new(Ledger::new(dialect).await);
    let ids: Arc<Vec<Id<Wallet>>> = Arc::new(ledger.open_wallets(WALLETS).await);
    let committed: Arc<[AtomicI64; WALLETS]> = Arc::new(std::array::from_fn(|_| AtomicI64::new(1)));
    let done = Arc::new(AtomicBool::new(false));
    let mut readers = JoinSet::new();
    for seed in 0..16 {
        let (ledger, ids) = (ledger.clone(), ids.clone());
        let (committed, done) = (committed.clone(), done.clone());
        readers.spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut seen = [1; WALLETS];
            while !done.load(Ordering::Acquire) {
                let at = random.usize(..WALLETS);
                let least = committed[at].load(Ordering::Acquire).max(seen[at]);
                let version = wallets(&ledger).get(ids[at]).await.unwrap().version();
                assert!(version >= least, "wallet {at} is at {version}, and was at {least}");
                seen[at] = version;
            }
        });
    }
    let mut writers = JoinSet::new();
    let commits = rounds(100, 2_000);
    for at in 0..WALLETS {
        let (ledger, ids, committed) = (ledger.clone(), ids.clone(), committed.clone());
        writers.spawn(async move {
            for _ in 0..commits {
                let version = ledger.deposit(ids[at]).await.unwrap().version();
                committed[at].store(version, Ordering::Release);
            }
        });
    }
    bounded("all writers", writers.join_all()).await;
    done.store(true, Ordering::Release);
    bounded("all readers", readers.join_all()).await;
    ledger.assert_sound(WALLETS * commits).await;
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Failed {
    Read(#[from] ReadError),
    Write(#[from] WriteError),
}

/// Other reads of the same rows are in flight, and see nothing of the transaction.
async fn reads_in_a_transaction_see_its_writes(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let ids = ledger.open_wallets(8).await;
    let outside = wallets(&ledger);
    let writing = async |transaction: Transaction| -> Result<(), Failed> {
        let inside = outside.within(&transaction);
        for id in &ids {
            let wallet = inside.get(*id).await?.apply(|wallet| wallet.owner = "changed".into());
            inside.update(wallet).await?;
        }
        for _ in 0..5 {
            let both =
                (read_all(&outside, &ids), read_all(&inside, &ids), read_all(&outside, &ids));
            let (before, within, after) = tokio::join!(both.0, both.1, both.2);
            assert!(within?.iter().all(|wallet| wallet.owner == "changed"));
            assert!(before?.iter().chain(&after?).all(|wallet| wallet.owner != "changed"));
        }
        Ok(())
    };
    ledger.databases.transactions().in_transaction(writing).await.unwrap();
}
