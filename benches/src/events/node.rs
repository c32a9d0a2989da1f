//! Ekbatan's side: a node with one handler that does nothing but to note its start.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::action::{Budget, ErrorKind, RetryPolicy};
use ekbatan::config::DataSourceConfig;
use ekbatan::events::{
    Delivered, DeliveryOperations, EventHandler, HandlerContext, HandlerOptions, Node,
};
use ekbatan::prelude::*;

use super::recorder::Recorder;
use crate::commit::{NAMESPACE, PRINCIPAL};
use crate::failure::Failure;
use crate::wallet::{Deposit, DepositMoney, Wallet, WalletEvent};

/// The connections of the pool, which only reads.
const POOL: usize = 16;

const GRACE: Duration = Duration::from_secs(30);

/// An executor with databases of its own: nothing is shared with another one but the database.
pub async fn executor(config: &DataSourceConfig) -> Result<ActionExecutor, Failure> {
    let config = config.clone().maximum_pool_size(POOL);
    let databases = Databases::connect(&EkbatanConfig::from(config)).await?;
    let patient = RetryPolicy::default().with(ErrorKind::Stale, Budget::new(u32::MAX));
    Ok(ActionExecutor::builder(&databases, NAMESPACE)
        .model::<Wallet>()
        .retry(patient)
        .build()
        .await?)
}

pub async fn deposit(
    executor: &ActionExecutor,
    wallet: Uuid,
    amount: Decimal,
) -> Result<(), Failure> {
    let deposit = Deposit { wallet: Id::from(wallet), amount };
    executor.execute(&DepositMoney, deposit).principal(PRINCIPAL).await?;
    Ok(())
}

/// A node, and its executor.
pub struct EkbatanNode {
    node: Node,
    executor: ActionExecutor,
    /// Whether nobody else uses the executor.
    is_own: bool,
}

impl EkbatanNode {
    pub async fn start(
        executor: ActionExecutor,
        is_own: bool,
        recorder: Arc<Recorder>,
        parks: Option<Uuid>,
    ) -> Result<Self, Failure> {
        let options = match parks {
            Some(_) => HandlerOptions::default().max_attempts(1),
            None => HandlerOptions::default(),
        };
        let handler = NoteDeposit { recorder, parks };
        let node = Node::builder(&executor).handler_with(handler, options).start().await?;
        Ok(Self { node, executor, is_own })
    }

    /// Stops, and returns how many events are still to be handled.
    pub async fn stop(self) -> Result<u64, Failure> {
        self.node.drain(GRACE).await;
        let databases = self.executor.databases();
        let mut open = 0;
        for shard in databases.shards() {
            open += DeliveryOperations::new(databases, &shard).pending(NoteDeposit::NAME).await?;
        }
        if self.is_own {
            databases.close().await;
        }
        Ok(open)
    }
}

struct NoteDeposit {
    recorder: Arc<Recorder>,
    /// The wallet whose events cannot be handled.
    parks: Option<Uuid>,
}

impl EventHandler for NoteDeposit {
    const NAME: &'static str = "bench.note_deposit";
    type Event = WalletEvent;
    type Error = Failure;

    async fn handle(
        &self,
        _: &mut HandlerContext<'_>,
        event: &Delivered<WalletEvent>,
    ) -> Result<(), Failure> {
        let WalletEvent::MoneyDeposited { amount, balance } = event.event else {
            return Err("this is not a deposit".into());
        };
        let wallet = event.model_id.parse()?;
        if self.parks == Some(wallet) {
            return Err("the events of this wallet cannot be handled".into());
        }
        self.recorder.handle(wallet, amount, balance)
    }
}
