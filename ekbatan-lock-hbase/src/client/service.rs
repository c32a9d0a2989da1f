//! The services of HBase's servers, and how long they may take to answer.

use std::time::Duration;

/// Maximum time for a server to answer, and to accept a connection.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Service {
    /// Where the servers of the cluster are.
    Registry,
    /// Tables.
    Master,
    /// Rows.
    Rows,
}

impl Service {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Registry => "ClientMetaService",
            Self::Master => "MasterService",
            Self::Rows => "ClientService",
        }
    }
}
