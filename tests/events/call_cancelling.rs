//! Actions that cancel a call: one that commits together with the action that enqueued it, and the
//! call itself.

use std::future::IntoFuture;
use std::time::Duration;

use ekbatan::action::Contention;
use ekbatan::domain::LockKey;
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};
use support::wallet::{Deposit, DepositMoney, Wallet, WalletError};

use crate::calls::{run, waiting};
use crate::scene::{PostEntry, Posting, Scene};

on_every_database! {
    a_call_is_cancelled_by_an_action_that_commits_together_with_the_one_that_enqueued_it,
    a_call_that_cancels_its_own_key_runs_once,
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Deposits into an empty wallet and enqueues a reminder; deposits into another one and cancels it.
struct Remind;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Reminding {
    wallet: Id<Wallet>,
}

impl Action for Remind {
    const NAME: &'static str = "wallet.remind";
    type Params = Reminding;
    type Output = ();
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        Reminding { wallet }: &Reminding,
    ) -> Result<(), WalletError> {
        let deposit = Deposit { wallet: *wallet, amount: Decimal::ONE };
        let is_first = DepositMoney.perform(ctx, &deposit).await?.balance == Decimal::ONE;
        if is_first {
            ctx.plan().enqueue(&PostEntry, posting(1)).after(DAY).unique(wallet.to_string());
        } else {
            ctx.plan().cancel(&PostEntry, wallet.to_string());
        }
        Ok(())
    }
}

fn posting(number: i64) -> Posting {
    Posting { event: Uuid::now_v7(), wallet: "calls".to_owned(), wallet_version: number }
}

async fn a_call_is_cancelled_by_an_action_that_commits_together_with_the_one_that_enqueued_it(
    scene: &Scene,
) {
    for _ in 0..10 {
        let wallet = scene.open_wallet().await;
        let call = || {
            let call = scene.executor.execute(&Remind, Reminding { wallet });
            let key = LockKey::named(&wallet.to_string());
            call.contention(Contention::coalesced()).contention_keys([key]).into_future()
        };
        // The second one reads what the first one leaves, before that is committed.
        let (first, second) = tokio::join!(call(), call());
        first.unwrap();
        second.unwrap();
        assert_eq!(waiting(scene).await, 0, "the call was cancelled");
    }
}

/// Posts an entry, and has no other call of it run.
struct PostOnly;

impl Action for PostOnly {
    const NAME: &'static str = "ledger.post_only";
    type Params = Posting;
    type Output = ();
    type Error = std::convert::Infallible;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        posting: &Posting,
    ) -> Result<(), Self::Error> {
        ctx.plan().cancel(self, "only");
        PostEntry.perform(ctx, posting).await
    }
}

/// Enqueues a call of [`PostOnly`].
struct EnqueueOnly;

impl Action for EnqueueOnly {
    const NAME: &'static str = "ledger.enqueue_only";
    type Params = Posting;
    type Output = ();
    type Error = std::convert::Infallible;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        posting: &Posting,
    ) -> Result<(), Self::Error> {
        ctx.plan().enqueue(&PostOnly, posting.clone()).unique("only");
        Ok(())
    }
}

async fn a_call_that_cancels_its_own_key_runs_once(scene: &Scene) {
    let _node = scene.node().action(PostOnly).start().await.unwrap();
    scene.executor.execute(&EnqueueOnly, posting(1)).await.unwrap();
    scene.until_handled(PostOnly::NAME).await;
    assert_eq!(run(scene).await, [1]);
}
