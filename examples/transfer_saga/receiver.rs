//! What is done on the shard of the receiver, where a transfer is decided: an offer is accepted or
//! withdrawn, whichever commits first.

use ekbatan::domain::New;
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};

use crate::transfer::{Offer, OfferError, OfferEvent, OfferState, Transfer};
use crate::wallet::Wallet;

/// Makes the offer of a transfer. If there is no such wallet, it is withdrawn from the begin.
pub struct MakeOffer;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Offering {
    pub offer: ShardedId<Offer>,
    pub transfer: ShardedId<Transfer>,
    pub receiver: ShardedId<Wallet>,
    pub amount: Decimal,
}

impl Action for MakeOffer {
    const NAME: &'static str = "offer.make";
    type Params = Offering;
    type Output = ();
    type Error = OfferError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        offering: &Offering,
    ) -> Result<(), OfferError> {
        let receiver = ctx.find(offering.receiver).await?;
        let (state, event) = match receiver {
            Some(_) => (OfferState::Open, OfferEvent::Made {}),
            None => {
                let transfer = offering.transfer;
                (OfferState::Withdrawn, OfferEvent::Withdrawn { transfer })
            }
        };
        let offer = Offer {
            id: offering.offer,
            transfer: offering.transfer,
            receiver: offering.receiver,
            amount: offering.amount,
            state,
        };
        ctx.plan().add(New::new(offer, event));
        Ok(())
    }
}

/// The parameters of the actions on one offer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OfOffer {
    pub offer: ShardedId<Offer>,
}

/// Puts the money of an offer into the wallet of the receiver.
pub struct AcceptOffer;

impl Action for AcceptOffer {
    const NAME: &'static str = "offer.accept";
    type Params = OfOffer;
    type Output = ();
    type Error = OfferError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &OfOffer,
    ) -> Result<(), OfferError> {
        let offer = ctx.get(params.offer).await?.change(Offer::accept)?;
        let (receiver, amount) = (offer.receiver, offer.amount);
        let receiver = ctx.get(receiver).await?.apply(|wallet| wallet.receive(amount));
        ctx.plan().update(offer);
        ctx.plan().update(receiver);
        Ok(())
    }
}

/// Withdraws an offer, unless it was accepted.
pub struct WithdrawOffer;

impl Action for WithdrawOffer {
    const NAME: &'static str = "offer.withdraw";
    type Params = OfOffer;
    type Output = ();
    type Error = OfferError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &OfOffer,
    ) -> Result<(), OfferError> {
        let offer = ctx.get(params.offer).await?;
        if offer.state == OfferState::Open {
            ctx.plan().update(offer.change(Offer::withdraw)?);
        }
        Ok(())
    }
}
