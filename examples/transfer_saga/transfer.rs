//! The sender's shard stores the transfer, the receiver's shard the offer.
//!
//! ```text
//! transfer, with the sender                  offer, with the receiver
//!
//! Offered    -- makes an offer ---------->   Open
//! Expired    -- asks for it back -------->   Withdrawn, unless it is Accepted
//! Completed  <------------ was accepted --   Accepted
//! Returned   <----------- was withdrawn --   Withdrawn
//! ```

use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};

use crate::wallet::{Wallet, WalletError};

/// Money that has left one wallet and is offered to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Model)]
#[model(table = "transfers", event = TransferEvent, name = "Transfer")]
pub struct Transfer {
    pub id: ShardedId<Transfer>,
    pub sender: ShardedId<Wallet>,
    pub offer: ShardedId<Offer>,
    pub amount: Decimal,
    pub state: TransferState,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, State)]
pub enum TransferState {
    Offered,
    /// The time is over. Whether the receiver was faster is decided on the other shard.
    Expired,
    Completed,
    Returned,
}

#[derive(Debug, Clone, Serialize, Deserialize, Event)]
pub enum TransferEvent {
    #[event(name = "TransferBegun")]
    Begun {
        transfer: ShardedId<Transfer>,
        offer: ShardedId<Offer>,
        receiver: ShardedId<Wallet>,
        amount: Decimal,
    },
    #[event(name = "TransferExpired")]
    Expired { offer: ShardedId<Offer> },
    #[event(name = "TransferCompleted")]
    Completed {},
    #[event(name = "TransferReturned")]
    Returned {},
}

#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    #[error("the transfer {0} has ended already, as {1:?}")]
    Ended(ShardedId<Transfer>, TransferState),
    #[error("the id {0} of the receiver names no shard")]
    NoShard(ShardedId<Wallet>),
    #[error(transparent)]
    Wallet(#[from] WalletError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Transfer {
    fn end(&mut self, state: TransferState) -> Result<(), TransferError> {
        if matches!(self.state, TransferState::Completed | TransferState::Returned) {
            return Err(TransferError::Ended(self.id, self.state));
        }
        self.state = state;
        Ok(())
    }

    pub fn complete(&mut self) -> Result<TransferEvent, TransferError> {
        self.end(TransferState::Completed)?;
        Ok(TransferEvent::Completed {})
    }

    pub fn undo(&mut self) -> Result<TransferEvent, TransferError> {
        self.end(TransferState::Returned)?;
        Ok(TransferEvent::Returned {})
    }

    pub fn expire(&mut self) -> TransferEvent {
        self.state = TransferState::Expired;
        TransferEvent::Expired { offer: self.offer }
    }
}

/// Money that a receiver can have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Model)]
#[model(table = "offers", event = OfferEvent, name = "Offer")]
pub struct Offer {
    pub id: ShardedId<Offer>,
    pub transfer: ShardedId<Transfer>,
    pub receiver: ShardedId<Wallet>,
    pub amount: Decimal,
    pub state: OfferState,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, State)]
pub enum OfferState {
    Open,
    Accepted,
    Withdrawn,
}

#[derive(Debug, Clone, Serialize, Deserialize, Event)]
pub enum OfferEvent {
    #[event(name = "OfferMade")]
    Made {},
    #[event(name = "OfferAccepted")]
    Accepted { transfer: ShardedId<Transfer> },
    #[event(name = "OfferWithdrawn")]
    Withdrawn { transfer: ShardedId<Transfer> },
}

#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    #[error("the offer {0} is not open, but {1:?}")]
    NotOpen(ShardedId<Offer>, OfferState),
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Offer {
    fn end(&mut self, state: OfferState) -> Result<(), OfferError> {
        if self.state != OfferState::Open {
            return Err(OfferError::NotOpen(self.id, self.state));
        }
        self.state = state;
        Ok(())
    }

    pub fn accept(&mut self) -> Result<OfferEvent, OfferError> {
        self.end(OfferState::Accepted)?;
        Ok(OfferEvent::Accepted { transfer: self.transfer })
    }

    pub fn withdraw(&mut self) -> Result<OfferEvent, OfferError> {
        self.end(OfferState::Withdrawn)?;
        Ok(OfferEvent::Withdrawn { transfer: self.transfer })
    }
}
