//! Ekbatan's side: a node with one handler or one action that does nothing but to note its start.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::action::{Budget, ErrorKind, RetryPolicy};
use ekbatan::config::DataSourceConfig;
use ekbatan::events::{
    Delivered, DeliveryOperations, EventHandler, HandlerContext, HandlerOptions, Node,
};
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};

use super::broker_site::{BrokerSite, RELAY};
use super::options::EventsMode;
use super::recorder::Recorder;
use crate::commit::{NAMESPACE, PRINCIPAL};
use crate::failure::Failure;
use crate::wallet::{Deposit, DepositMoney, Wallet, WalletError, WalletEvent};

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

/// What makes deposits.
#[derive(Clone)]
pub struct Deposits {
    pub executor: ActionExecutor,
    pub mode: EventsMode,
}

impl Deposits {
    pub async fn deposit(&self, wallet: Uuid, amount: Decimal) -> Result<(), Failure> {
        let deposit = Deposit { wallet: Id::from(wallet), amount };
        match self.mode {
            EventsMode::Calls | EventsMode::CallsInTurn => {
                let action = DepositAndEnqueue { in_turn: self.mode == EventsMode::CallsInTurn };
                self.executor.execute(&action, deposit).principal(PRINCIPAL).await?;
            }
            _ => {
                self.executor.execute(&DepositMoney, deposit).principal(PRINCIPAL).await?;
            }
        }
        Ok(())
    }
}

/// A node, and its executor.
pub struct EkbatanNode {
    node: Node,
    executor: ActionExecutor,
    /// Whether nobody else uses the executor.
    is_own: bool,
    /// The handler, or the action that is called.
    name: &'static str,
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
        Ok(Self { node, executor, is_own, name: NoteDeposit::NAME })
    }

    /// Starts a node that runs the calls of deposits.
    pub async fn start_calls(
        executor: ActionExecutor,
        is_own: bool,
        recorder: Arc<Recorder>,
    ) -> Result<Self, Failure> {
        let action = NoteByCall(Some(recorder));
        let node = Node::builder(&executor).action(action).start().await?;
        Ok(Self { node, executor, is_own, name: NoteByCall::NAME })
    }

    /// Starts a node with a relay.
    pub async fn start_relay(
        executor: ActionExecutor,
        is_own: bool,
        recorder: Arc<Recorder>,
        site: &BrokerSite,
    ) -> Result<Self, Failure> {
        let node = Node::builder(&executor).relay(site.relay(recorder)?).start().await?;
        Ok(Self { node, executor, is_own, name: RELAY })
    }

    /// Stops, and returns how many events or calls are still to be handled.
    pub async fn stop(self) -> Result<u64, Failure> {
        self.node.drain(GRACE).await;
        let databases = self.executor.databases();
        let mut open = 0;
        for shard in databases.shards() {
            open += DeliveryOperations::new(databases, &shard).pending(self.name).await?;
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

/// Makes a deposit, and enqueues a call that notes it.
struct DepositAndEnqueue {
    in_turn: bool,
}

impl Action for DepositAndEnqueue {
    const NAME: &'static str = "bench.deposit_and_enqueue";
    type Params = Deposit;
    type Output = ();
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        deposit: &Deposit,
    ) -> Result<(), WalletError> {
        let balance = DepositMoney.perform(ctx, deposit).await?.balance;
        let (wallet, amount) = (deposit.wallet.uuid(), deposit.amount);
        let call = ctx.plan().enqueue(&NoteByCall(None), Noting { wallet, amount, balance });
        if self.in_turn {
            call.in_turn(wallet.to_string());
        }
        Ok(())
    }
}

/// Notes a deposit. Whoever only enqueues calls needs no recorder.
struct NoteByCall(Option<Arc<Recorder>>);

#[derive(Debug, Serialize, Deserialize)]
struct Noting {
    wallet: Uuid,
    amount: Decimal,
    balance: Decimal,
}

#[derive(Debug, thiserror::Error)]
#[error("the call cannot be noted: {0}")]
struct NoteError(Failure);

impl Action for NoteByCall {
    const NAME: &'static str = "bench.note_by_call";
    type Params = Noting;
    type Output = ();
    type Error = NoteError;

    async fn perform(&self, _: &mut ActionContext<'_>, noting: &Noting) -> Result<(), NoteError> {
        let Some(recorder) = &self.0 else {
            return Err(NoteError("there is no recorder".into()));
        };
        recorder.handle(noting.wallet, noting.amount, noting.balance).map_err(NoteError)
    }
}
