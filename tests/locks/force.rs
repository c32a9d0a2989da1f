//! A lease that is ended by force, while its holder does not know.

use ekbatan::action::{AsFence, Fence};
use ekbatan::lock::{KeyedLockProvider, LockKey};
use ekbatan::prelude::*;

use crate::database::TestDatabase;
use crate::providers::{Kind, LONG, on_postgres};
use support::wallet::{Deposit, DepositMoney, OpenWallet, Opening, Wallet, WalletError};
use support::{Dialect, ScratchDatabase, until};

on_every_database! {
    a_lease_that_another_process_ends_by_force_commits_nothing,
    only_earlier_leases_are_fenced_off,
    a_lease_that_its_own_process_ends_by_force_commits_nothing,
}

/// Deposits; runs a closure between its read and its change.
pub struct Meanwhile<F>(pub F);

impl<F, Fut> Action for Meanwhile<F>
where
    F: Fn() -> Fut + Send + Sync,
    Fut: Future<Output = ()> + Send,
{
    const NAME: &'static str = "wallet.meanwhile";
    type Params = Deposit;
    type Output = ();
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Deposit,
    ) -> Result<(), WalletError> {
        let wallet = ctx.get(params.wallet).await?;
        (self.0)().await;
        let wallet = wallet.change(|wallet| wallet.deposit(params.amount))?;
        ctx.plan().update(wallet);
        Ok(())
    }
}

async fn deposit(db: &TestDatabase) -> Deposit {
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    let wallet = db.executor().execute(&OpenWallet, opening).await.unwrap().id;
    Deposit { wallet, amount: Decimal::ONE }
}

async fn balance(db: &TestDatabase, wallet: Id<Wallet>) -> Decimal {
    db.databases.repository::<Wallet>().get(wallet).await.unwrap().balance
}

async fn a_lease_that_another_process_ends_by_force_commits_nothing(db: &TestDatabase) {
    let url = ScratchDatabase::create(Dialect::Postgres).await.url;
    let here = on_postgres(Kind::PostgresLease, &url).await;
    let there = on_postgres(Kind::PostgresLease, &url).await;
    let (key, executor) = (LockKey::named("k"), db.executor());
    let params = deposit(db).await;
    let wallet = params.wallet;

    let lease = here.acquire(&key, LONG).await.unwrap();
    let forced = Meanwhile(|| async {
        assert!(there.force_release_fenced(&key, "a test", &db.databases).await.unwrap());
        assert!(lease.is_held(), "the holder does not know");
    });
    let late = executor.execute(&forced, params).fenced_by(&lease).await;
    assert!(matches!(late, Err(ExecuteError::FenceLost { .. })), "{late:?}");
    assert_eq!(balance(db, wallet).await, Decimal::ZERO);

    let again = || Deposit { wallet, amount: Decimal::ONE };
    let late = executor.execute(&DepositMoney, again()).fenced_by(&lease).await;
    assert!(matches!(late, Err(ExecuteError::FenceLost { .. })), "{late:?}");
    // The next lease is not fenced off, nor by a forced release that finds no holder.
    assert!(!there.force_release_fenced(&key, "a test", &db.databases).await.unwrap());
    let next = there.acquire(&key, LONG).await.unwrap();
    executor.execute(&DepositMoney, again()).fenced_by(&next).await.unwrap();
    assert_eq!(balance(db, wallet).await, Decimal::ONE);
}

async fn only_earlier_leases_are_fenced_off(db: &TestDatabase) {
    let executor = db.executor();
    for (token, holds) in [(4, false), (5, true), (6, true)] {
        let key = format!("k{token}");
        let params = deposit(db).await;
        let fenced_off = Meanwhile(|| async { db.databases.fence_off(&key, 5).await.unwrap() });
        let lease = Fence { key: key.clone(), token, remaining: LONG };
        match executor.execute(&fenced_off, params).fenced_by(&lease).await {
            Ok(()) => assert!(holds, "{token}"),
            Err(ExecuteError::FenceLost { key: lost, .. }) => {
                assert!(!holds && lost == key, "{token}")
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// The successor is in another process, and its token is known there only.
async fn a_lease_that_its_own_process_ends_by_force_commits_nothing(db: &TestDatabase) {
    for kind in [Kind::PostgresLease, Kind::PostgresSession] {
        let url = ScratchDatabase::create(Dialect::Postgres).await.url;
        let (here, there) = (on_postgres(kind, &url).await, on_postgres(kind, &url).await);
        let (key, executor) = (LockKey::named("k"), db.executor());
        db.forget_fences().await;
        let params = deposit(db).await;
        let wallet = params.wallet;

        let lease = here.acquire(&key, LONG).await.unwrap();
        let (locks, of) = (there.clone(), key.clone());
        let successor = tokio::spawn(async move { locks.acquire(&of, LONG).await.unwrap() });
        until("the successor has found the key taken", async || there.counters().contended > 0)
            .await;
        let fence = lease.as_fence();
        assert!(here.force_release_fenced(&key, "a test", &db.databases).await.unwrap());
        // An action that began under the lease and has not noticed.
        let late = executor.execute(&DepositMoney, params).fenced_by(&fence).await;
        assert!(matches!(late, Err(ExecuteError::FenceLost { .. })), "{kind:?}: {late:?}");
        let again = || Deposit { wallet, amount: Decimal::ONE };
        let next = successor.await.unwrap();
        executor.execute(&DepositMoney, again()).fenced_by(&next).await.unwrap();
        assert_eq!(balance(db, wallet).await, Decimal::ONE);
    }
}
