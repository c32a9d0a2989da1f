//! The row of a node, and the rows of others.
//!
//! A node renews its row by raising the version. If another node sees the same version for as long
//! as the lease in the row, it deletes the row, unless it is renewed in the same moment. So no two
//! clocks are compared. Each process is a node of its own, also if several have one name.

use std::collections::HashMap;
use std::time::Duration;

use ekbatan_core::domain::{Id, New, Stored};
use ekbatan_core::repository::{Repository, WriteError};
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::JobsError;
use crate::rows::{NodeRow, NodeState};
use crate::settings::SHORTEST_LEASE;
use crate::store::Store;

/// A node.
pub(crate) struct Membership {
    nodes: Repository<NodeRow>,
    own: Stored<NodeRow>,
}

/// The other nodes, as a node sees them.
pub(crate) struct OtherNodes {
    nodes: Repository<NodeRow>,
    /// The versions of the nodes, and since when they are the same.
    seen: HashMap<Uuid, (i64, Instant)>,
    shortest_lease: Duration,
}

impl Membership {
    /// Adds a node.
    pub(crate) async fn join(
        store: &Store,
        name: &str,
        lease: Duration,
    ) -> Result<Self, JobsError> {
        let nodes = store.nodes.clone();
        let row = NodeRow {
            id: Id::from_uuid(Uuid::now_v7()),
            name: name.to_owned(),
            lease: i64::try_from(lease.as_millis()).unwrap_or(i64::MAX),
            started: store.now().await?,
            state: NodeState::Live,
        };
        let own = nodes.add(New::new(row, ())).await?;
        Ok(Self { nodes, own })
    }

    pub(crate) fn id(&self) -> Uuid {
        self.own.id.uuid()
    }

    /// Renews the node. `false` if somebody has deleted it: it is lost.
    pub(crate) async fn renew(&mut self) -> Result<bool, JobsError> {
        loop {
            match self.nodes.update(self.own.clone().apply(|_| ())).await {
                Ok(renewed) => {
                    self.own = renewed;
                    return Ok(true);
                }
                // The answer to an earlier renewal may have been lost.
                Err(WriteError::Stale(_)) => match self.nodes.find(self.own.id).await? {
                    Some(own) => self.own = own,
                    None => return Ok(false),
                },
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Deletes the node, at its end.
    pub(crate) async fn leave(&mut self) -> Result<(), JobsError> {
        loop {
            match self.nodes.erase(&self.own).await {
                // A renewal may have been given up, and have happened all the same.
                Err(WriteError::Stale(_)) => match self.nodes.find(self.own.id).await? {
                    Some(own) => self.own = own,
                    None => return Ok(()),
                },
                left => return Ok(left?),
            }
        }
    }
}

impl OtherNodes {
    pub(crate) fn new(store: &Store) -> Self {
        let nodes = store.nodes.clone();
        Self { nodes, seen: HashMap::new(), shortest_lease: Duration::MAX }
    }

    /// The shortest lease of the nodes that were there at the last look.
    pub(crate) fn shortest_lease(&self) -> Duration {
        self.shortest_lease
    }

    /// The leases of the nodes that are there, and the nodes that have not renewed their rows for as long.
    pub(crate) async fn look(
        &mut self,
        own: Uuid,
    ) -> Result<(HashMap<Uuid, Duration>, Vec<Stored<NodeRow>>), JobsError> {
        let asked = Instant::now();
        let mut nodes = self.nodes.find_all().await?;
        // The answer may have taken long. A version counts from when it was surely there.
        let read = Instant::now();
        let leases: HashMap<_, _> =
            nodes.iter().map(|node| (node.id.uuid(), lease_of(node))).collect();
        self.shortest_lease = leases.values().copied().min().unwrap_or(Duration::MAX);
        self.seen.retain(|id, _| leases.contains_key(id));
        nodes.retain(|node| {
            let version = node.version();
            let (seen, since) = self.seen.entry(node.id.uuid()).or_insert((version, read));
            if *seen != version {
                (*seen, *since) = (version, read);
            }
            node.id.uuid() != own && asked.saturating_duration_since(*since) >= lease_of(node)
        });
        Ok((leases, nodes))
    }

    /// Deletes a node. It fails if the node was renewed meanwhile.
    pub(crate) async fn delete(&self, node: &Stored<NodeRow>) -> Result<(), JobsError> {
        self.nodes.erase(node).await?;
        tracing::warn!(node = %node.id, name = %node.name, "a node of jobs is silent; its runs are taken over");
        Ok(())
    }
}

fn lease_of(node: &NodeRow) -> Duration {
    Duration::from_millis(node.lease.max(0).unsigned_abs()).max(SHORTEST_LEASE)
}
