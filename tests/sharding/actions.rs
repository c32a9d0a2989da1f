//! Actions that a test defines with a closure.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use ekbatan::prelude::*;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::models::{Account, AccountEvent};

/// The domain error of the actions.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The parameters of an action that needs none.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Nothing {}

/// An action that runs a closure and counts its runs.
pub struct Stage<F, O> {
    stage: F,
    runs: AtomicU32,
    of: PhantomData<fn() -> O>,
}

impl<F, O> Stage<F, O> {
    pub fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

impl<F, O> Action for Stage<F, O>
where
    F: Fn(&mut ActionContext<'_>) -> O + Send + Sync,
    O: Send,
{
    const NAME: &'static str = "sharding.stage";
    type Params = Nothing;
    type Output = O;
    type Error = Failed;

    async fn perform(&self, ctx: &mut ActionContext<'_>, _: &Nothing) -> Result<O, Failed> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        Ok((self.stage)(ctx))
    }
}

pub fn stage<F, O>(stage: F) -> Stage<F, O>
where
    F: Fn(&mut ActionContext<'_>) -> O + Send + Sync,
{
    Stage { stage, runs: AtomicU32::new(0), of: PhantomData }
}

/// The accounts to take from, and the amount.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Route {
    pub accounts: Vec<ShardedId<Account>>,
    pub amount: Decimal,
}

pub fn route(accounts: &[Stored<Account>]) -> Route {
    Route { accounts: accounts.iter().map(|account| account.id).collect(), amount: Decimal::ONE }
}

type Hook = Box<dyn Fn(u32) -> BoxFuture<'static, ()> + Send + Sync>;

/// Reads accounts, runs a hook, and takes the amount from each account.
#[derive(Default)]
pub struct Take {
    between: Option<Hook>,
    runs: AtomicU32,
}

impl Take {
    /// Runs a hook between the reads and the commit; the hook gets the attempt.
    pub fn with(between: impl Fn(u32) -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Self {
        Self { between: Some(Box::new(between)), runs: AtomicU32::new(0) }
    }

    pub fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

impl Action for Take {
    const NAME: &'static str = "sharding.take";
    type Params = Route;
    /// The attempt that committed.
    type Output = u32;
    type Error = Failed;

    async fn perform(&self, ctx: &mut ActionContext<'_>, route: &Route) -> Result<u32, Failed> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        let mut accounts = Vec::new();
        for id in &route.accounts {
            accounts.push(ctx.get(*id).await?);
        }
        if let Some(between) = &self.between {
            between(ctx.attempt()).await;
        }
        for account in accounts {
            let changed = account.apply(|account| {
                account.balance -= route.amount;
                AccountEvent::Changed { by: -route.amount }
            });
            ctx.plan().update(changed);
        }
        Ok(ctx.attempt())
    }
}
