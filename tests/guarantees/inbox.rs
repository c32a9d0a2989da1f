//! Messages that are delivered until they are acknowledged, while lines break and callers leave:
//! each has one effect.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ekbatan::action::Once;
use ekbatan::prelude::*;
use ekbatan_testkit::drop_at_poll;
use support::soak::rounds;
use support::wallet::{Deposit, DepositMoney, Wallet};
use support::{Dialect, ScratchDatabase, until};
use tokio::task::JoinSet;

use crate::ledger::{Ledger, proxied};

on_every_database!(messages_whose_callers_leave_have_one_effect);

/// There is no line to a SQLite file.
mod lines {
    use super::messages_whose_commits_get_no_answer_have_one_effect;

    on_every_database! {
        only postgres and mysql and mariadb:
        messages_whose_commits_get_no_answer_have_one_effect,
    }
}

/// Delivers a message until it is acknowledged. Returns whether this call has handled it.
async fn deliver(executor: &ActionExecutor, wallet: Id<Wallet>, message: &str) -> bool {
    loop {
        let deposit = Deposit { wallet, amount: Decimal::ONE };
        match executor.execute(&DepositMoney, deposit).once("payments", message).await {
            Ok(Once::Done(_)) => return true,
            Ok(Once::Duplicate) => return false,
            // As a broker does, after its visibility timeout.
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

async fn messages_whose_callers_leave_have_one_effect(dialect: Dialect) {
    let ledger = Arc::new(Ledger::new(dialect).await);
    let ids = Arc::new(ledger.open_wallets(4).await);
    let messages = rounds(40, 400);
    let mut tasks = JoinSet::new();
    for task in 0..10 {
        let (ledger, ids) = (ledger.clone(), ids.clone());
        tasks.spawn(async move {
            for n in 0..messages {
                let (wallet, message) = (ids[n % ids.len()], format!("{task}/{n}"));
                let deposit = Deposit { wallet, amount: Decimal::ONE };
                let call = ledger.executor.execute(&DepositMoney, deposit);
                let call = call.once("payments", &*message).into_future();
                let _ = drop_at_poll((task + n) % 14, call).await;
                deliver(&ledger.executor, wallet, &message).await;
            }
        });
    }
    tasks.join_all().await;
    ledger.assert_sound(10 * messages).await;
    ledger.nothing_is_held().await;
}

/// Half of the callers are behind a line that is cut again and again, the others are not.
async fn messages_whose_commits_get_no_answer_have_one_effect(dialect: Dialect) {
    let url = ScratchDatabase::create(dialect).await.url;
    let direct = Ledger::open(&url).await;
    let ids = Arc::new(direct.open_wallets(4).await);
    let (through, proxy) = proxied(&url).await;
    let behind = Ledger::open(&through).await;
    let messages = rounds(100, 1_000);
    let (done, answered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let executor = if task < 4 { behind.executor.clone() } else { direct.executor.clone() };
        let (ids, done, answered) = (ids.clone(), done.clone(), answered.clone());
        tasks.spawn(async move {
            for n in 0..messages {
                let message = format!("{}/{n}", task % 2);
                let handled = deliver(&executor, ids[n % ids.len()], &message).await;
                done.fetch_add(usize::from(handled), Ordering::Relaxed);
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let cuts = 10;
    for cut in 1..=cuts {
        // While commits are on their way.
        until("calls are answered", async || {
            answered.load(Ordering::Relaxed) >= cut * 8 * messages / (cuts + 2)
        })
        .await;
        proxy.cut();
        proxy.restore();
    }
    tasks.join_all().await;
    assert!(done.load(Ordering::Relaxed) <= 2 * messages);
    direct.assert_sound(2 * messages).await;
    assert_eq!(ScratchDatabase::at(&url).count(&direct.eventlog("inbox")).await, 2 * messages);
}
