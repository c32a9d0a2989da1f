//! The steps of the model.

use std::fmt;

/// What leads from one state to the next. The number is that of a node, if no other is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// A process commits the next version, with a delivery that nobody has claimed.
    Commit(u8),
    /// A process builds the commit of the next version, with a delivery that it claims.
    Stage(u8),
    /// That commit arrives at the database.
    Land(u8),
    /// The process gets the answer, and the delivery that was born claimed.
    Arrive(u8),
    /// The process never gets the answer.
    LoseAnswer(u8),
    /// The commit of a crashed process arrives at the database.
    LandLate,
    /// The commit of a crashed process never arrives.
    Vanish,
    /// Another program commits the next version.
    Foreign,
    /// A node reads what is due.
    Read(u8),
    /// It gives deliveries to the events that have none.
    Sweep(u8),
    /// It reads what stands before the due ones, and decides what to claim.
    Look(u8),
    /// One of its claims arrives at the database.
    Claim {
        /// The node.
        node: u8,
        /// The event.
        event: u8,
    },
    /// It hands out what it has claimed.
    Take(u8),
    /// The commit of a handler arrives, and its answer.
    Handle(u8),
    /// The commit of a handler arrives, and its answer is lost.
    HandleUnheard(u8),
    /// A handler fails.
    Fail(u8),
    /// The commit of a handler that an earlier identity started.
    HandleLate(u8),
    /// A node releases a delivery that it has claimed and does not hold.
    Check {
        /// The node.
        node: u8,
        /// The event.
        event: u8,
    },
    /// A delivery whose node has no row is released.
    ReleaseOrphan(u8),
    /// The process crashes, and another one takes its place.
    Crash(u8),
    /// The row of a node that crashed is deleted.
    DeleteDead(u8),
    /// The row of a node that lives is deleted.
    Suspect(u8),
    /// A node notices that its row is gone, and joins again.
    Rejoin {
        /// The node.
        node: u8,
        /// Whether one of its handlers runs on.
        runs_on: bool,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commit(node) => write!(f, "process {node} commits the next version"),
            Self::Stage(node) => write!(
                f,
                "process {node} builds a commit of the next version that claims its delivery"
            ),
            Self::Land(node) => write!(f, "the commit of process {node} arrives"),
            Self::Arrive(node) => write!(f, "process {node} hears of its commit"),
            Self::LoseAnswer(node) => write!(f, "process {node} never hears of its commit"),
            Self::LandLate => write!(f, "the commit of a crashed process arrives"),
            Self::Vanish => write!(f, "the commit of a crashed process is lost"),
            Self::Foreign => write!(f, "another program commits the next version"),
            Self::Read(node) => write!(f, "node {node} reads what is due"),
            Self::Sweep(node) => write!(f, "node {node} sweeps"),
            Self::Look(node) => write!(f, "node {node} reads what stands before that"),
            Self::Claim { node, event } => write!(f, "node {node} claims event {event}"),
            Self::Take(node) => write!(f, "node {node} hands out what it has claimed"),
            Self::Handle(node) => write!(f, "the handler of node {node} commits"),
            Self::HandleUnheard(node) => {
                write!(f, "the handler of node {node} commits, and the answer is lost")
            }
            Self::Fail(node) => write!(f, "the handler of node {node} fails"),
            Self::HandleLate(node) => {
                write!(f, "a handler of an earlier identity of node {node} commits")
            }
            Self::Check { node, event } => {
                write!(f, "node {node} releases event {event}, which it does not hold")
            }
            Self::ReleaseOrphan(event) => write!(f, "event {event} of a lost node is released"),
            Self::Crash(node) => write!(f, "process {node} crashes and is replaced"),
            Self::DeleteDead(node) => write!(f, "the row of crashed node {node} is deleted"),
            Self::Suspect(node) => write!(f, "the row of living node {node} is deleted"),
            Self::Rejoin { node, runs_on: false } => {
                write!(f, "node {node} misses its row and joins again")
            }
            Self::Rejoin { node, runs_on: true } => {
                write!(f, "node {node} joins again while a handler runs on")
            }
        }
    }
}
