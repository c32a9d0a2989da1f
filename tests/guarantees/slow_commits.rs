//! A commit that takes longer than a commit may take, and those that were sent with it.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::action::{ErrorKind, ExecuteError};
use ekbatan::config::DataSourceConfig;
use ekbatan::prelude::*;
use support::wallet::{Deposit, DepositMoney, Wallet, WalletError};
use support::{Dialect, ScratchDatabase};
use tokio::task::JoinHandle;

use crate::bounded;
use crate::ledger::Ledger;
use crate::other_sessions::{Gate, Observer};
use crate::waiting::{filled, insist};

on_every_database! {
    only postgres and mysql and mariadb:
    a_slow_commit_is_refused_without_those_that_were_sent_with_it,
}

mod all_of_them {
    use super::*;

    on_every_database! {
        only postgres: slow_commits_do_not_pile_up,
    }
}

/// A ledger with one lane. The commits of some of its wallets end only when their gates open.
struct GatedLane {
    ledger: Arc<Ledger>,
    wallets: Vec<Id<Wallet>>,
    /// Of the first wallets.
    gates: Vec<Gate>,
    scratch: ScratchDatabase,
}

type Deposited = Result<Stored<Wallet>, ExecuteError<WalletError>>;

impl GatedLane {
    /// A lane that has been given deposits into all of its wallets together. On a busy machine they may
    /// arrive only after the lane has given up the commit that keeps it busy.
    async fn with_deposits(
        dialect: Dialect,
        slow: usize,
        others: usize,
        config: impl Fn(DataSourceConfig) -> DataSourceConfig,
    ) -> (Self, Vec<JoinHandle<Deposited>>) {
        for _ in 0..5 {
            let lane = Self::new(dialect, slow, others, &config).await;
            if let Some(deposits) = lane.deposit_together().await {
                return (lane, deposits);
            }
        }
        panic!("in no round did all commits arrive while the lane was busy");
    }

    async fn new(
        dialect: Dialect,
        slow: usize,
        others: usize,
        config: impl Fn(DataSourceConfig) -> DataSourceConfig,
    ) -> Self {
        let scratch = ScratchDatabase::create(dialect).await;
        let config = config(scratch.config().lanes(1).queue_limit(slow + others));
        let ledger = Arc::new(Ledger::with_config(config).await);
        let wallets = ledger.open_wallets(slow + others).await;
        let mut gates = Vec::new();
        for wallet in &wallets[..slow] {
            gates.push(Gate::closed(&scratch.url, *wallet).await);
        }
        Self { ledger, wallets, gates, scratch }
    }

    /// Deposits into every wallet; the lane sends all of it together, after a commit that keeps it
    /// busy until then. Returns nothing if the lane refused that one because it took too long.
    async fn deposit_together(&self) -> Option<Vec<JoinHandle<Deposited>>> {
        let busy = self.ledger.open_wallets(1).await[0];
        let gate = Gate::closed(&self.scratch.url, busy).await;
        let mut first = self.deposit(busy);
        let mut observer = Observer::connect(&self.scratch.url).await;
        let mut deposits = Vec::new();
        let one_more = async || {
            let deposit = Deposit { wallet: busy, amount: Decimal::ONE };
            let call = self.ledger.executor.execute(&DepositMoney, deposit);
            call.deadline(Duration::from_millis(100)).await
        };
        let filling = async {
            observer.wait_for_blocked().await;
            deposits.extend(self.wallets.iter().map(|wallet| self.deposit(*wallet)));
            filled(one_more).await;
        };
        let early = async {
            tokio::select! {
                biased;
                early = &mut first => Some(early),
                () = filling => None,
            }
        };
        let early = bounded("all commits wait", early).await;
        gate.open().await;
        let answer = match early {
            Some(answer) => answer,
            None => bounded("the first commit", first).await,
        };
        match answer.unwrap() {
            Ok(_) => Some(deposits),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                None
            }
        }
    }

    fn deposit(&self, wallet: Id<Wallet>) -> JoinHandle<Deposited> {
        let ledger = self.ledger.clone();
        let deposit = Deposit { wallet, amount: Decimal::ONE };
        tokio::spawn(async move {
            ledger.executor.execute(&DepositMoney, deposit).retry(insist()).await
        })
    }

    /// Opens the gates, and checks that so many deposits were made.
    async fn assert_deposited(self, deposits: usize) {
        for gate in self.gates {
            gate.open().await;
        }
        self.ledger.assert_sound(deposits).await;
    }
}

/// The error of a commit that took too long.
async fn refused(deposit: JoinHandle<Deposited>) -> String {
    let error = bounded("a slow commit", deposit).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    error.to_string()
}

/// No wait for a row tells the slow one from the others.
async fn a_slow_commit_is_refused_without_those_that_were_sent_with_it(dialect: Dialect) {
    let others = 5;
    let config = |config: DataSourceConfig| {
        let patient = config.connection_timeout(Duration::from_secs(60));
        patient.commit_timeout(Duration::from_secs(12))
    };
    let (lane, mut deposits) = GatedLane::with_deposits(dialect, 1, others, config).await;
    let slow = deposits.remove(0);
    for other in deposits {
        bounded("a commit that is not slow", other).await.unwrap().unwrap();
    }
    refused(slow).await;
    lane.assert_deposited(1 + others).await;
}

/// One after the other, each of them would wait for those before it. In the time for which one may
/// wait, at most two end, and three if a task begins late.
async fn slow_commits_do_not_pile_up(dialect: Dialect) {
    let slow = 5;
    let short = Duration::from_secs(12);
    let config = |config: DataSourceConfig| config.commit_timeout(short).connection_timeout(short);
    let (lane, deposits) = GatedLane::with_deposits(dialect, slow, 0, config).await;
    let mut refused_in_line = 0;
    for deposit in deposits {
        let error = refused(deposit).await;
        refused_in_line += usize::from(error.contains("other commits take as long"));
    }
    assert!(refused_in_line >= slow - 3, "{refused_in_line} of {slow} were refused in the line");
    lane.assert_deposited(1).await;
}
