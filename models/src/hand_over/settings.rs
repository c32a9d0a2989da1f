//! Which hand-over is checked: its defect, if it has one, its size and its faults.

/// The number of callers that a model has at most.
pub(super) const CALLERS: usize = 3;

/// The process of each caller.
pub(super) const PROCESS_OF: [u8; CALLERS] = [0, 1, 0];

/// How the hand-over works: as it is meant, or with one defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Variant {
    /// As it is meant.
    Correct,
    /// Force ends the grant that stands when it arrives, not the one that the operator saw.
    ForceEndsWhatStands,
    /// A grant that is handed over lasts until it is released.
    HandsOverForEver,
    /// A grant that is handed over lasts for a whole term at once.
    HandsOverAWholeTerm,
    /// A waiter counts the term of its grant from the moment at which the message arrives.
    TermFromArrival,
    /// The server looks whether the key is free in one step, and registers the waiter in another.
    RegistersLater,
    /// A release ends the grant that stands when it arrives, also if another caller has it.
    ReleasesWhatStands,
    /// A hand-over keeps the token of the holder before.
    KeepsTheToken,
    /// Commits are not fenced.
    WithoutFence,
    /// Nobody looks for lost messages and expired grants.
    WithoutSafetyNet,
}

/// The size of a model, and what can happen in it.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// How the hand-over works.
    pub variant: Variant,
    /// The number of callers, two or three: one holds, the others wait. Of three,
    /// the first and the last are in one process.
    pub callers: usize,
    /// The length of a confirmed term, in ticks of the server's clock.
    pub term: u8,
    /// The length of the term until a grant is confirmed.
    pub confirm: u8,
    /// The number of messages on their way from which on callers begin nothing new: they still
    /// confirm, look, release and give up.
    pub messages: usize,
    /// How many earlier acquisitions of a caller may have left something behind when it asks
    /// again.
    pub left_behind: u8,
    /// Whether holders extend terms that are confirmed.
    pub extends: bool,
    /// Whether holders read and commit.
    pub commits: bool,
    /// Whether operators release by force.
    pub forces: bool,
    /// Whether processes crash.
    pub crashes: bool,
    /// Whether messages are lost. They are delayed, and overtake each other, in any case.
    pub losses: bool,
    /// Whether waiters give up.
    pub gives_up: bool,
    /// Whether a search goes on where [`Broken::WaitsAtAFreeKey`](super::Broken), to see what
    /// follows from it.
    pub may_wait_at_free_keys: bool,
}

impl Settings {
    /// Two waiters behind a holder, and every fault.
    pub fn new(variant: Variant) -> Self {
        Self {
            variant,
            callers: CALLERS,
            term: 2,
            confirm: 1,
            messages: 2,
            left_behind: 0,
            extends: true,
            commits: true,
            forces: true,
            crashes: true,
            losses: true,
            gives_up: true,
            may_wait_at_free_keys: false,
        }
    }
}
