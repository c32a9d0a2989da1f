//! Commits under read/write locks and permits, whose holder does not know that it holds no longer.

use ekbatan::action::{AsFence, Fence};
use ekbatan::lock::{Lease, LockKey, LockProvider, WriteLease};
use ekbatan::prelude::*;

use crate::commit::{LockedDatabase, one, wallet};
use crate::semaphore::{patient, slot};
use crate::trips::Interrupted;
use support::wallet::{DepositMoney, Wallet};

on_providers! {
    |kind| &crate::commit::LockedDatabase::start(kind).await;
    [
        process, redis, etcd, sqlite, postgres_lease, postgres_session,
        mysql_lease, mysql_session, mariadb_lease, mariadb_session; stores
    ]
    readers_commit_beside_each_other,
    no_reader_commits_after_a_later_writer_has_begun,
    no_writer_commits_after_a_later_reader_has_begun,
    a_permit_that_another_holder_has_by_now_commits_nothing,
}

const READERS: usize = 2;

/// A holder that believes that it holds for as long as it was told when it began.
struct Unaware(Vec<Fence>);

impl Unaware {
    fn of(lease: &impl AsFence) -> Self {
        let mut fences = vec![lease.as_fence()];
        fences.extend(lease.others().iter().map(|other| other.as_fence()));
        Self(fences)
    }
}

impl AsFence for Unaware {
    fn as_fence(&self) -> Fence {
        self.0[0].clone()
    }

    fn others(&self) -> Vec<&dyn AsFence> {
        self.0[1..].iter().map(|fence| fence as &dyn AsFence).collect()
    }
}

/// A call, and another one on another wallet that commits between the read and the commit of the
/// first.
struct Race<'t> {
    t: &'t LockedDatabase,
    wallets: [Id<Wallet>; 2],
}

impl<'t> Race<'t> {
    async fn new(t: &'t LockedDatabase) -> Self {
        let executor = t.executor();
        Self { t, wallets: [wallet(&executor).await, wallet(&executor).await] }
    }

    /// Whether the first call commits, under the lease of a holder that notices nothing.
    async fn commits<L, F>(
        &self,
        first: &impl AsFence,
        other: impl Fn(LockProvider) -> F + Send + Sync + 'static,
    ) -> bool
    where
        L: AsFence + Send + Sync,
        F: Future<Output = L> + Send + 'static,
    {
        let (executor, locks) = (self.t.executor(), self.t.locks());
        let [of_first, of_other] = self.wallets;
        let meanwhile = Interrupted(move |_| {
            let (executor, other) = (executor.clone(), other(locks.clone()));
            // In a task of its own: a call within `perform` is refused.
            let depositing = tokio::spawn(async move {
                let lease = other.await;
                let call = executor.execute(&DepositMoney, one(of_other)).fenced_by(&lease);
                call.await.expect("the lease of the other call is held");
            });
            async { depositing.await.expect("the other call commits") }
        });
        let executor = self.t.executor();
        let call = executor.execute(&meanwhile, one(of_first)).fenced_by(&Unaware::of(first));
        let committed = match call.await {
            Ok(_) => true,
            Err(ExecuteError::FenceLost { .. }) => false,
            Err(error) => panic!("{error:?}"),
        };
        let balance = async |id| self.t.wallet(id).await.balance;
        let first = if committed { Decimal::ONE } else { Decimal::ZERO };
        assert_eq!((balance(of_first).await, balance(of_other).await), (first, Decimal::ONE));
        committed
    }
}

fn key() -> LockKey {
    LockKey::named("k")
}

async fn reader(locks: &LockProvider) -> Lease {
    locks.read_write(&key(), READERS).read(&patient()).await.unwrap().unwrap()
}

async fn writer(locks: &LockProvider) -> WriteLease {
    locks.read_write(&key(), READERS).write(&patient()).await.unwrap().unwrap()
}

async fn end_all(locks: &LockProvider) {
    for n in 0..READERS {
        locks.force_release(&slot(n), "a test").await.unwrap();
    }
}

async fn readers_commit_beside_each_other(t: &LockedDatabase) {
    let first = reader(&t.locks()).await;
    let other = |locks: LockProvider| async move { reader(&locks).await };
    assert!(Race::new(t).await.commits(&first, other).await);
}

async fn no_reader_commits_after_a_later_writer_has_begun(t: &LockedDatabase) {
    // In each place that a reader may have.
    for _ in 0..READERS * 2 {
        let first = reader(&t.locks()).await;
        let next = |locks: LockProvider| async move {
            end_all(&locks).await;
            writer(&locks).await
        };
        assert!(!Race::new(t).await.commits(&first, next).await);
    }
}

async fn no_writer_commits_after_a_later_reader_has_begun(t: &LockedDatabase) {
    for _ in 0..READERS * 2 {
        let first = writer(&t.locks()).await;
        let next = |locks: LockProvider| async move {
            end_all(&locks).await;
            reader(&locks).await
        };
        assert!(!Race::new(t).await.commits(&first, next).await);
    }
}

async fn a_permit_that_another_holder_has_by_now_commits_nothing(t: &LockedDatabase) {
    let first = t.locks().semaphore(&key(), 1).take(&patient()).await.unwrap().unwrap();
    let next = |locks: LockProvider| async move {
        end_all(&locks).await;
        locks.semaphore(&key(), 1).take(&patient()).await.unwrap().unwrap()
    };
    assert!(!Race::new(t).await.commits(&first, next).await);
}
