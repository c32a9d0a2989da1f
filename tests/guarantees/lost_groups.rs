//! Groups of calls whose answer is lost.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use ekbatan::action::Coalesced;
use ekbatan::lock::LockKey;
use ekbatan::prelude::*;
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use support::wallet::{Deposit, DepositMoney, Wallet, WalletError};
use support::{Dialect, PlainConnection, ScratchDatabase, until};
use tokio::sync::Semaphore;

use crate::ledger::{Ledger, proxied};
use crate::other_sessions::{Observer, lock_wallet};

on_every_database! {
    only postgres and mysql and mariadb:
    a_group_is_looked_up_by_a_member_that_leaves_a_record,
}

/// Waits for the gate, and then expects a wallet to be unchanged. It writes nothing.
struct CheckWallet {
    gate: Arc<Semaphore>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Check {
    wallet: Id<Wallet>,
}

impl Action for CheckWallet {
    const NAME: &'static str = "wallet.check";
    type Params = Check;
    type Output = ();
    type Error = WalletError;

    async fn perform(&self, ctx: &mut ActionContext<'_>, check: &Check) -> Result<(), WalletError> {
        self.gate.acquire().await.unwrap().forget();
        let wallet = ctx.get(check.wallet).await?;
        ctx.plan().expect(&wallet);
        Ok(())
    }
}

/// The first member of the group leaves nothing by which its commit could be found. If the group
/// were looked up by it, the deposit would be made a second time.
async fn a_group_is_looked_up_by_a_member_that_leaves_a_record(dialect: Dialect) {
    let url = ScratchDatabase::create(dialect).await.url;
    let (through, proxy) = proxied(&url).await;
    let ledger = Ledger::open(&through).await;
    let wallet = ledger.open_wallets(1).await[0];
    let direct = ScratchDatabase::at(&url);
    let mut observer = Observer::connect(&url).await;
    let mut holder = PlainConnection::connect(&url).await;
    let written = direct.count_events().await;

    let together = Coalesced::default().time(Duration::MAX).turn(Duration::MAX);
    let keys = || [LockKey::of("wallet", wallet)];
    let gate = Arc::new(Semaphore::new(0));
    let check = CheckWallet { gate: gate.clone() };
    let checking = ledger.executor.execute(&check, Check { wallet });
    let mut checking = checking.contention(together).contention_keys(keys()).into_future();
    let deposit = Deposit { wallet, amount: Decimal::ONE };
    let depositing = ledger.executor.execute(&DepositMoney, deposit);
    let mut depositing = depositing.contention(together).contention_keys(keys()).into_future();
    // The check has its turn, and the deposit waits for the next.
    assert!((&mut checking).now_or_never().is_none());
    assert!((&mut depositing).now_or_never().is_none());

    holder.execute("BEGIN").await;
    lock_wallet(&mut holder, wallet).await;
    gate.add_permits(1);
    let losing = async {
        observer.wait_for_blocked().await;
        proxy.stall();
        holder.execute("COMMIT").await;
        until("the server commits", async || direct.count_events().await > written).await;
        proxy.cut();
        proxy.resume();
        proxy.restore();
    };
    let (checked, deposited, ()) = tokio::join!(checking, depositing, losing);
    checked.unwrap();
    assert_eq!(deposited.unwrap().balance, Decimal::ONE);
    let stored = ledger.databases.repository::<Wallet>().get(wallet).await.unwrap();
    assert_eq!(stored.balance, Decimal::ONE, "deposited twice");
    ledger.assert_sound(1).await;
}
