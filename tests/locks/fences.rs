//! The fences of two lock servers in one database.

use ekbatan::lock::{KeyedLockProvider, LockLevel};
use ekbatan::prelude::*;
use support::Dialect;
use support::wallet::{Deposit, DepositMoney, OpenWallet, Opening};

use crate::database::TestDatabase;
use crate::providers::{Kind, LONG, TestLocks};

/// Tokens of one server say nothing about those of another, so one key may be held at both.
#[tokio::test]
async fn keys_of_one_name_at_two_servers_do_not_fence_each_other_off_on_redis() {
    let database = TestDatabase::start(Dialect::Sqlite).await;
    let executor = database.executor();
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    let wallet = executor.execute(&OpenWallet, opening).await.unwrap().id;
    // Two namespaces of one server have nothing in common.
    let [one, other] = [TestLocks::start(Kind::Redis).await, TestLocks::start(Kind::Redis).await];
    let (one, other) = (one.locks, other.locks.fenced_as("another server"));
    let deposit = || Deposit { wallet, amount: Decimal::ONE };
    for key in [LockLevel::Zone, LockLevel::Global].map(|it| lock_key!("wallet", wallet).level(it))
    {
        let earlier = one.acquire(&key, LONG).await.unwrap();
        // Both servers count from the clock, so one grant more makes the token greater.
        assert!(other.acquire(&lock_key!("another"), LONG).await.unwrap().release().await);
        let later = other.acquire(&key, LONG).await.unwrap();
        assert!(later.token() > earlier.token());
        for lease in [&later, &earlier] {
            executor.execute(&DepositMoney, deposit()).fenced_by(lease).await.unwrap();
        }
    }
}
