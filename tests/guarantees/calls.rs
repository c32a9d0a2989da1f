//! Calls within a transaction, calls with a deadline, and outcomes of calls that still run.

use std::future::IntoFuture;
use std::time::Duration;

use ekbatan::action::{ErrorKind, Outcome};
use ekbatan::prelude::*;
use ekbatan_testkit::drop_at_poll;
use support::wallet::{Deposit, Wallet, WalletError};
use support::{Dialect, InterruptedDeposit};
use tokio::sync::Notify;

use crate::ledger::Ledger;

on_every_database! { the_outcome_of_a_running_call_is_awaited }

on_every_database! { on_sqlite_only: a_deadline_during_an_effect_does_not_change_the_result }

async fn the_outcome_of_a_running_call_is_awaited(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    let (started, go_on) = (Notify::new(), Notify::new());
    let slow = InterruptedDeposit(|_| async {
        started.notify_one();
        go_on.notified().await;
    });
    let call = ledger.executor.execute(&slow, Deposit { wallet: id, amount: Decimal::ONE });
    let action = call.action_id();
    let asking = async {
        started.notified().await;
        let impatient = drop_at_poll(1, ledger.executor.outcome(action)).await;
        assert!(impatient.finished().is_none(), "the call has not finished");
        go_on.notify_one();
        ledger.executor.outcome(action).await.unwrap()
    };
    let (answer, outcome) = tokio::join!(call.into_future(), asking);
    answer.unwrap();
    assert_eq!(outcome, Outcome::Committed);
}

/// A deposit with an effect that never completes.
struct WithEndlessEffect;

impl Action for WithEndlessEffect {
    const NAME: &'static str = "wallet.deposit_with_endless_effect";
    type Params = Deposit;
    type Output = Stored<Wallet>;
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Deposit,
    ) -> Result<Stored<Wallet>, WalletError> {
        let wallet =
            ctx.get(params.wallet).await?.change(|wallet| wallet.deposit(params.amount))?;
        ctx.plan()
            .after_commit("endless", |_| std::future::pending::<Result<(), std::io::Error>>());
        Ok(ctx.plan().update(wallet))
    }
}

async fn a_deadline_during_an_effect_does_not_change_the_result(dialect: Dialect) {
    let mut last = None;
    for _ in 0..5 {
        let ledger = Ledger::new(dialect).await;
        let id = ledger.open_wallets(1).await[0];
        ledger.deposit(id).await.unwrap();
        let deposit = Deposit { wallet: id, amount: Decimal::ONE };
        let call = ledger.executor.execute(&WithEndlessEffect, deposit);
        match call.deadline(Duration::from_secs(5)).await {
            Ok(wallet) => {
                assert_eq!(wallet.version(), 3);
                return ledger.assert_sound(2).await;
            }
            Err(error) => {
                // On a busy machine the deadline may pass before the effect begins.
                let early = [ErrorKind::Deadline, ErrorKind::CommitUnknown];
                assert!(early.contains(&error.kind()), "{error}");
                last = Some(error);
            }
        }
    }
    panic!("in no round did the effect begin before the deadline: {last:?}");
}
