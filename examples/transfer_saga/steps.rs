//! The steps between the shards: a handler on each side tells the other one what was committed.
//!
//! They execute by `step`, because they commit on another shard than that of the event; each of
//! them has its effect once, however often it runs.

use ekbatan::events::{Delivered, EventHandler, HandlerContext};
use ekbatan::prelude::*;

use crate::receiver::{MakeOffer, OfOffer, Offering, WithdrawOffer};
use crate::sender::{CompleteTransfer, OfTransfer, ReturnMoney};
use crate::transfer::{OfferError, OfferEvent, TransferError, TransferEvent};

/// Sends each change of a transfer to the receiver's shard.
pub struct TellReceiver;

impl EventHandler for TellReceiver {
    const NAME: &'static str = "transfer.tell_receiver";
    type Event = TransferEvent;
    type Error = ExecuteError<OfferError>;

    async fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        event: &Delivered<TransferEvent>,
    ) -> Result<(), ExecuteError<OfferError>> {
        match event.event {
            TransferEvent::Begun { transfer, offer, receiver, amount } => {
                let offering = Offering { offer, transfer, receiver, amount };
                ctx.step("offer", &MakeOffer, offering).await
            }
            TransferEvent::Expired { offer } => {
                ctx.step("withdraw", &WithdrawOffer, OfOffer { offer }).await
            }
            TransferEvent::Completed {} | TransferEvent::Returned {} => Ok(()),
        }
    }
}

/// Tells the shard of the sender how an offer has ended.
pub struct TellSender;

impl EventHandler for TellSender {
    const NAME: &'static str = "offer.tell_sender";
    type Event = OfferEvent;
    type Error = ExecuteError<TransferError>;

    async fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        event: &Delivered<OfferEvent>,
    ) -> Result<(), ExecuteError<TransferError>> {
        match event.event {
            OfferEvent::Made {} => Ok(()),
            OfferEvent::Accepted { transfer } => {
                ctx.step("complete", &CompleteTransfer, OfTransfer { transfer }).await
            }
            OfferEvent::Withdrawn { transfer } => {
                ctx.step("return", &ReturnMoney, OfTransfer { transfer }).await
            }
        }
    }
}
