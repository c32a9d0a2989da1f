//! The steps of the model.

use std::fmt;

use super::message::Message;

/// What leads from one state to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// A caller begins an acquisition.
    Start(u8),
    /// A waiter does not wait any longer.
    GiveUp(u8),
    /// A waiter looks for a lost message or an expired grant.
    Look(u8),
    /// A holder asks for a whole term from now, although it has been heard of.
    Extend(u8),
    /// A holder that the key was handed to is heard of.
    Confirm(u8),
    /// A holder reads in the database.
    Begin(u8),
    /// A holder sends its commit.
    Commit(u8),
    /// A holder releases the key.
    Release(u8),
    /// A holder notices that its term is over.
    Expire(u8),
    /// A process crashes, and another one takes its place.
    Crash(u8),
    /// A message arrives.
    Deliver(Message),
    /// A message is lost.
    Lose(Message),
    /// An operator looks who holds the key.
    Inspect,
    /// The operator's release by force arrives.
    Force,
    /// The clock goes on.
    Tick,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(caller) => write!(f, "caller {caller} asks for the key"),
            Self::GiveUp(caller) => write!(f, "caller {caller} gives up waiting"),
            Self::Look(caller) => write!(f, "caller {caller} looks at the row"),
            Self::Extend(caller) => write!(f, "caller {caller} extends"),
            Self::Confirm(caller) => write!(f, "caller {caller} confirms"),
            Self::Begin(caller) => write!(f, "caller {caller} reads"),
            Self::Commit(caller) => write!(f, "caller {caller} sends its commit"),
            Self::Release(caller) => write!(f, "caller {caller} releases"),
            Self::Expire(caller) => write!(f, "caller {caller} notices the end of its term"),
            Self::Crash(process) => write!(f, "process {process} crashes and is replaced"),
            Self::Deliver(message) => write!(f, "{message} arrives"),
            Self::Lose(message) => write!(f, "{message} is lost"),
            Self::Inspect => write!(f, "an operator looks who holds the key"),
            Self::Force => write!(f, "the operator's release by force arrives"),
            Self::Tick => write!(f, "the clock ticks"),
        }
    }
}
