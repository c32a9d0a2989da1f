//! What is done on the shard of the sender: a transfer begins here, and is completed or undone.

use std::time::Duration;

use ekbatan::domain::New;
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};

use crate::transfer::{Transfer, TransferError, TransferEvent, TransferState};
use crate::wallet::Wallet;

/// Takes the money from the sender and begins a transfer.
pub struct BeginTransfer;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sending {
    pub from: ShardedId<Wallet>,
    pub to: ShardedId<Wallet>,
    pub amount: Decimal,
    /// How long the receiver has time to accept.
    pub open_for: Duration,
}

impl Action for BeginTransfer {
    const NAME: &'static str = "transfer.begin";
    type Params = Sending;
    type Output = Stored<Transfer>;
    type Error = TransferError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        sending: &Sending,
    ) -> Result<Stored<Transfer>, TransferError> {
        let shards = (sending.from.shard(), sending.to.shard());
        let (Some(here), Some(there)) = shards else {
            return Err(TransferError::NoShard(sending.to));
        };
        let sender = ctx.get(sending.from).await?.change(|wallet| wallet.send(sending.amount))?;
        let (id, offer) = (ctx.new_sharded_id(here), ctx.new_sharded_id(there));
        let (receiver, amount) = (sending.to, sending.amount);
        let transfer =
            Transfer { id, sender: sending.from, offer, amount, state: TransferState::Offered };
        let begun = TransferEvent::Begun { transfer: id, offer, receiver, amount };
        ctx.plan().update(sender);
        ctx.plan()
            .enqueue(&ExpireTransfer, OfTransfer { transfer: id })
            .after(sending.open_for)
            .unique(id.to_string());
        Ok(ctx.plan().add(New::new(transfer, begun)))
    }
}

/// The parameters of the actions on one transfer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OfTransfer {
    pub transfer: ShardedId<Transfer>,
}

/// Runs when the time of the receiver is over.
pub struct ExpireTransfer;

impl Action for ExpireTransfer {
    const NAME: &'static str = "transfer.expire";
    type Params = OfTransfer;
    type Output = ();
    type Error = TransferError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &OfTransfer,
    ) -> Result<(), TransferError> {
        let transfer = ctx.get(params.transfer).await?;
        if transfer.state == TransferState::Offered {
            ctx.plan().update(transfer.apply(Transfer::expire));
        }
        Ok(())
    }
}

/// Ends a transfer that the receiver has accepted.
pub struct CompleteTransfer;

impl Action for CompleteTransfer {
    const NAME: &'static str = "transfer.complete";
    type Params = OfTransfer;
    type Output = ();
    type Error = TransferError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &OfTransfer,
    ) -> Result<(), TransferError> {
        let transfer = ctx.get(params.transfer).await?.change(Transfer::complete)?;
        ctx.plan().update(transfer);
        // This commit makes the timeout needless.
        ctx.plan().cancel(&ExpireTransfer, params.transfer.to_string());
        Ok(())
    }
}

/// Gives the money of a transfer back to the sender.
pub struct ReturnMoney;

impl Action for ReturnMoney {
    const NAME: &'static str = "transfer.return";
    type Params = OfTransfer;
    type Output = ();
    type Error = TransferError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &OfTransfer,
    ) -> Result<(), TransferError> {
        let transfer = ctx.get(params.transfer).await?;
        let (sender, amount) = (transfer.sender, transfer.amount);
        let transfer = transfer.change(Transfer::undo)?;
        let sender = ctx.get(sender).await?.apply(|wallet| wallet.take_back(amount));
        ctx.plan().update(transfer);
        ctx.plan().update(sender);
        ctx.plan().cancel(&ExpireTransfer, params.transfer.to_string());
        Ok(())
    }
}
