//! What the two sides of a mode have in common.

/// What the two sides share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// A process: the handlers hear of deposits without asking the database.
    Process,
    /// The database alone.
    Database,
}
