//! Which handling is checked: its defect, if it has one, and its faults.

/// The number of nodes.
pub(super) const NODES: usize = 2;

/// The number of events of the model. Each is that of one version.
pub(super) const EVENTS: usize = 3;

/// How events are handled: as it is meant, or with one defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Variant {
    /// As it is meant.
    Correct,
    /// The mark does not check that the delivery is as the node has read it.
    UnguardedMark,
    /// A node's claims are released when the node is deleted, and not again later.
    ReleasesOrphansOnce,
    /// A round gives deliveries to events before it reads what is due.
    SweepsFirst,
    /// A round claims a delivery although another node has an earlier one.
    IgnoresObstacles,
    /// A round hands its claims out although a run of the stream has failed since the round began.
    ForgetsFailures,
    /// Every delivery is claimed by the node that commits it.
    BornClaimedAlways,
    /// A node takes what was born claimed without looking again at what it rested on.
    TakesBirthsUnseen,
    /// A node that has failed to handle an event goes on to claim later ones at birth.
    KeepsKnowledge,
    /// Nobody releases what a node has claimed and does not hold.
    WithoutCheck,
}

/// What can happen in a model.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// How events are handled.
    pub variant: Variant,
    /// How many of the nodes claim deliveries in the commit of the event.
    pub births: u8,
    /// How often another program commits, which knows nothing of deliveries.
    pub foreign: u8,
    /// How often the first process crashes.
    pub crashes: u8,
    /// How often the first node is taken for dead although it lives.
    pub suspicions: u8,
    /// How often a handler fails, or the answer to a commit is lost.
    pub failures: u8,
}

impl Settings {
    /// One fault of each kind.
    pub fn new(variant: Variant) -> Self {
        Self { variant, births: 2, foreign: 1, crashes: 1, suspicions: 1, failures: 1 }
    }
}
