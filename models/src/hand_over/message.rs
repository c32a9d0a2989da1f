//! The messages between the callers, the lock server and the database.

use std::fmt;

use super::settings::CALLERS;
#[cfg(doc)]
use super::settings::Variant;

/// An acquisition: a caller, and which of its acquisitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    pub(super) caller: u8,
    pub(super) round: u8,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "caller {}", self.caller)
    }
}

/// A set of acquisitions, one bit for each round of each caller.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OwnerSet([u32; CALLERS]);

impl OwnerSet {
    pub(super) fn add(&mut self, owner: Owner) {
        self.0[usize::from(owner.caller)] |= 1 << owner.round;
    }

    pub(super) fn has(&self, owner: Owner) -> bool {
        self.0[usize::from(owner.caller)] & (1 << owner.round) != 0
    }

    /// How many earlier acquisitions of the caller are in the set.
    pub(super) fn before(&self, owner: Owner) -> u8 {
        let earlier = (1 << owner.round) - 1;
        (self.0[usize::from(owner.caller)] & earlier).count_ones() as u8
    }
}

/// A message on its way. Times in messages are ends of terms, so they come nearer on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// To the server: the key, or a place among its waiters. `ends` is when a term ends that
    /// began with this request.
    Ask { owner: Owner, ends: u8 },
    /// To the caller, in [`Variant::RegistersLater`]: the key is taken.
    Busy { owner: Owner },
    /// To the server, in [`Variant::RegistersLater`]: a place among the waiters.
    Register { owner: Owner },
    /// To the caller: it has the key.
    Granted { owner: Owner, token: u8, ends: u8, confirmed: bool },
    /// To the server: a whole term from now.
    Extend { owner: Owner, token: u8, ends: u8 },
    /// To the caller: its term is longer, or it no longer has the key.
    Extended { owner: Owner, token: u8, ends: Option<u8> },
    /// To the server: the key is no longer needed, or no longer waited for.
    Release { owner: Owner },
    /// To the database: the commit of an action, `fresh` while nobody has committed since its
    /// read.
    Commit { token: u8, fresh: bool },
}

impl Message {
    pub(super) fn owner(&self) -> Option<Owner> {
        let mut message = *self;
        message.owner_mut().copied()
    }

    pub(super) fn owner_mut(&mut self) -> Option<&mut Owner> {
        match self {
            Self::Ask { owner, .. }
            | Self::Busy { owner }
            | Self::Register { owner }
            | Self::Granted { owner, .. }
            | Self::Extend { owner, .. }
            | Self::Extended { owner, .. }
            | Self::Release { owner } => Some(owner),
            Self::Commit { .. } => None,
        }
    }

    pub(super) fn token_mut(&mut self) -> Option<&mut u8> {
        match self {
            Self::Granted { token, .. }
            | Self::Extend { token, .. }
            | Self::Extended { token, .. }
            | Self::Commit { token, .. } => Some(token),
            _ => None,
        }
    }

    pub(super) fn ends_mut(&mut self) -> Option<&mut u8> {
        match self {
            Self::Ask { ends, .. } | Self::Granted { ends, .. } | Self::Extend { ends, .. } => {
                Some(ends)
            }
            Self::Extended { ends, .. } => ends.as_mut(),
            _ => None,
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask { owner, .. } => write!(f, "the request of {owner}"),
            Self::Busy { owner } => write!(f, "the answer \"busy\" to {owner}"),
            Self::Register { owner } => write!(f, "the registration of {owner}"),
            Self::Granted { owner, .. } => write!(f, "the grant for {owner}"),
            Self::Extend { owner, .. } => write!(f, "the extension of {owner}"),
            Self::Extended { owner, ends: Some(_), .. } => write!(f, "the longer term of {owner}"),
            Self::Extended { owner, ends: None, .. } => write!(f, "the refusal to extend {owner}"),
            Self::Release { owner } => write!(f, "the release of {owner}"),
            Self::Commit { .. } => write!(f, "a commit"),
        }
    }
}
