//! Reads by id that share statements: one of them fails, is dropped or is not polled any more, or
//! the connection or the runtime of all of them ends.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ekbatan::db::DbErrorKind;
use ekbatan::prelude::*;
use ekbatan::repository::ReadError;
use ekbatan_testkit::drop_at_poll;
use futures_util::future::{join_all, poll_immediate};
use support::soak::rounds;
use support::wallet::Wallet;
use support::{Dialect, ScratchDatabase};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, spawn_blocking};

use crate::bounded;
use crate::folded_reads::{read_all, wallets};
use crate::ledger::Ledger;
use crate::runtimes::end;

on_every_database! {
    a_row_that_cannot_be_read_fails_its_reader_only,
    every_reader_of_a_missing_table_gets_the_error,
    dropped_readers_harm_nobody,
    readers_that_are_not_polled_delay_nobody,
    a_runtime_that_nobody_drives_delays_no_other,
    readers_whose_runtime_ends_read_by_themselves,
    a_runtime_that_ends_harms_no_reader_of_another,
}

type Answer = Result<Stored<Wallet>, ReadError>;
type Read = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// No read gives up the wait for a connection or for a group within the time of a test.
async fn patient(dialect: Dialect) -> (ScratchDatabase, Ledger, Vec<Id<Wallet>>) {
    let scratch = ScratchDatabase::create(dialect).await;
    Ledger::open(&scratch.url).await.open_wallets(8).await;
    let config = scratch.config().connection_timeout(Duration::from_secs(600));
    let ledger = Ledger::with_config(config).await;
    let rows = wallets(&ledger).find_all().await.unwrap();
    (scratch, ledger, rows.iter().map(|wallet| wallet.id).collect())
}

fn reads(ledger: &Ledger, ids: &[Id<Wallet>]) -> Vec<Read> {
    let read = |id: &Id<Wallet>| -> Read {
        let (wallets, id) = (wallets(ledger), *id);
        Box::pin(async move { wallets.get(id).await })
    };
    ids.iter().map(read).collect()
}

/// Asks for rows and leaves every read where it waits for the first time. The first of them is
/// driven by its caller; the others wait for a group task.
async fn begin(ledger: &Ledger, ids: &[Id<Wallet>]) -> Vec<Read> {
    loop {
        let mut begun = Vec::new();
        for mut read in reads(ledger, ids) {
            // A quick server may have answered already.
            if poll_immediate(&mut read).await.is_none() {
                begun.push(read);
            }
        }
        if begun.len() > 2 {
            return begun;
        }
    }
}

async fn a_row_that_cannot_be_read_fails_its_reader_only(dialect: Dialect) {
    let (scratch, ledger, ids) = patient(dialect).await;
    // A row that the application's type cannot hold, and one that the driver cannot decode.
    let undecodable = match dialect {
        Dialect::Sqlite => "UPDATE wallets SET balance = 'much'",
        Dialect::Postgres => "UPDATE wallets SET balance = 'NaN'",
        Dialect::MySql | Dialect::MariaDb => {
            "SET SESSION sql_mode = ''; UPDATE wallets SET created_date = '0000-00-00 00:00:00'"
        }
    };
    for (broken, change) in [(2, "UPDATE wallets SET state = 'BROKEN'"), (5, undecodable)] {
        let sql = format!("{change} WHERE id = '{}'", ids[broken]);
        scratch.execute(&sql).await;
        for _ in 0..10 {
            let answers = bounded("all readers", join_all(reads(&ledger, &ids))).await;
            for (n, answer) in answers.iter().enumerate() {
                let fails = n == broken || (broken == 5 && n == 2);
                assert_eq!(answer.is_err(), fails, "reader {n}: {answer:?}");
            }
        }
    }
    ledger.assert_nothing_held();
}

async fn every_reader_of_a_missing_table_gets_the_error(dialect: Dialect) {
    let (scratch, ledger, ids) = patient(dialect).await;
    scratch.execute("DROP TABLE wallets").await;
    for answer in bounded("all readers", join_all(reads(&ledger, &ids))).await {
        let error = answer.unwrap_err();
        let kind = error.database_error().map(|error| error.kind());
        let own = match dialect {
            // SQLite has one code for all that is wrong with a statement.
            Dialect::Sqlite => kind.is_some(),
            _ => kind == Some(DbErrorKind::UndefinedTable),
        };
        assert!(own, "{error:?}");
    }
}

async fn dropped_readers_harm_nobody(dialect: Dialect) {
    let (_scratch, ledger, ids) = patient(dialect).await;
    let (ledger, ids) = (Arc::new(ledger), Arc::new(ids));
    let mut tasks = JoinSet::new();
    for task in 0..8_u64 {
        let (ledger, ids) = (ledger.clone(), ids.clone());
        tasks.spawn(async move {
            let mut random = fastrand::Rng::with_seed(task);
            for _ in 0..rounds(100, 2_000) {
                let id = ids[random.usize(..ids.len())];
                let repository = wallets(&ledger);
                // Half of the tasks drop their reads.
                if task % 2 == 0 {
                    let read = drop_at_poll(random.usize(..8), repository.get(id)).await;
                    assert!(read.finished().is_none_or(|answer| answer.unwrap().id == id));
                } else {
                    assert_eq!(repository.get(id).await.unwrap().id, id);
                }
            }
        });
    }
    bounded("all readers", tasks.join_all()).await;
    ledger.nothing_is_held().await;
}

async fn readers_that_are_not_polled_delay_nobody(dialect: Dialect) {
    let (_scratch, ledger, ids) = patient(dialect).await;
    let idle = begin(&ledger, &ids[..4]).await;
    for _ in 0..3 {
        let found = bounded("the other readers", read_all(&wallets(&ledger), &ids)).await;
        assert_eq!(found.unwrap().len(), ids.len());
    }
    bounded("a commit", ledger.deposit(ids[0])).await.unwrap();
    // They have waited for so long that each of them has its answer, or gets it now.
    for answer in bounded("the idle readers", join_all(idle)).await {
        answer.unwrap();
    }
}

/// A runtime that only runs while somebody blocks on it.
async fn undriven_runtime() -> Arc<Runtime> {
    let build = || Builder::new_current_thread().enable_all().build().unwrap();
    Arc::new(spawn_blocking(build).await.unwrap())
}

/// Begins reads in a runtime, and stops driving it before its tasks have run.
async fn begin_in(runtime: &Arc<Runtime>, ledger: &Arc<Ledger>, ids: &[Id<Wallet>]) -> Vec<Read> {
    let (runtime, ledger, ids) = (runtime.clone(), ledger.clone(), ids.to_vec());
    spawn_blocking(move || runtime.block_on(begin(&ledger, &ids))).await.unwrap()
}

async fn a_runtime_that_nobody_drives_delays_no_other(dialect: Dialect) {
    let (_scratch, ledger, ids) = patient(dialect).await;
    let ledger = Arc::new(ledger);
    let runtime = undriven_runtime().await;
    let idle = begin_in(&runtime, &ledger, &ids[..4]).await;
    for _ in 0..3 {
        let found = bounded("readers of this runtime", read_all(&wallets(&ledger), &ids)).await;
        assert_eq!(found.unwrap().len(), ids.len());
    }
    drop(idle);
    end(Arc::into_inner(runtime).unwrap()).await;
}

async fn readers_whose_runtime_ends_read_by_themselves(dialect: Dialect) {
    let (_scratch, ledger, ids) = patient(dialect).await;
    let ledger = Arc::new(ledger);
    let runtime = undriven_runtime().await;
    let mut waiting = begin_in(&runtime, &ledger, &ids[..4]).await;
    end(Arc::into_inner(runtime).unwrap()).await;
    // The first one uses a connection or a timer of the runtime that has ended. It is kept, because
    // the end of it would wake the others.
    let first = waiting.remove(0);
    for answer in bounded("readers whose task is gone", join_all(waiting)).await {
        answer.unwrap();
    }
    drop(first);
}

async fn a_runtime_that_ends_harms_no_reader_of_another(dialect: Dialect) {
    let (_scratch, ledger, ids) = patient(dialect).await;
    let (ledger, ids) = (Arc::new(ledger), Arc::new(ids));
    let read_on = |ledger: Arc<Ledger>, ids: Arc<Vec<Id<Wallet>>>, rounds: usize| async move {
        for _ in 0..rounds {
            let found = read_all(&wallets(&ledger), &ids).await.unwrap();
            assert_eq!(found.len(), ids.len());
        }
    };
    for _ in 0..rounds(5, 100) {
        let other = spawn_blocking(|| Builder::new_multi_thread().enable_all().build().unwrap());
        let other = other.await.unwrap();
        for _ in 0..4 {
            // Ends with its runtime.
            drop(other.spawn(read_on(ledger.clone(), ids.clone(), usize::MAX)));
        }
        let mut readers = JoinSet::new();
        for _ in 0..4 {
            readers.spawn(read_on(ledger.clone(), ids.clone(), 40));
        }
        end(other).await;
        bounded("readers of this runtime", readers.join_all()).await;
    }
}
