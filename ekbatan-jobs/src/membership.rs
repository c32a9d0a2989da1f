//! The row of a node, and the rows of others.
//!
//! A node renews its row by raising the version. If another node sees the same version for as long
//! as the lease in the row, it deletes the row, unless it is renewed in the same moment. So no two
//! clocks are compared. Each process is a node of its own, also if several have one name.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ekbatan_core::domain::{Id, New, Stored};
use ekbatan_core::repository::{Repository, WriteError};
use ekbatan_events::__private::failure;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::JobsError;
use crate::rows::{NodeRow, NodeState};
use crate::store::Store;

/// A node.
pub(crate) struct Membership {
    nodes: Repository<NodeRow>,
    own: Stored<NodeRow>,
    /// The versions of other nodes, and since when they are the same.
    seen: HashMap<Uuid, (i64, Instant)>,
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
        Ok(Self { nodes, own, seen: HashMap::new() })
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

    /// Deletes nodes that do not renew their rows. Returns those that are there.
    pub(crate) async fn clear_away(&mut self) -> Result<HashSet<Uuid>, JobsError> {
        let (present, own_lease) = (Instant::now(), lease_of(&self.own));
        let nodes = self.nodes.find_all().await?;
        let mut living: HashSet<_> = nodes.iter().map(|node| node.id.uuid()).collect();
        self.seen.retain(|id, _| living.contains(id));
        for node in nodes.iter().filter(|node| node.id != self.own.id) {
            let (id, version) = (node.id.uuid(), node.version());
            let lease = lease_of(node);
            let (seen, since) = self.seen.entry(id).or_insert((version, present));
            if *seen != version {
                (*seen, *since) = (version, present);
            } else if present.duration_since(*since) >= lease {
                // A row that is locked keeps no other node's runs from being taken over.
                match failure::within(own_lease / 10, self.nodes.erase(node)).await {
                    Ok(()) => {
                        tracing::warn!(node = %node.id, name = %node.name, "a node of jobs is silent; its runs are taken over");
                        living.remove(&id);
                    }
                    Err(error) => {
                        tracing::debug!(node = %node.id, error, "a silent node was not deleted; trying again");
                    }
                }
            }
        }
        Ok(living)
    }

    /// Deletes the node, at its end.
    pub(crate) async fn leave(&self) -> Result<(), JobsError> {
        match self.nodes.erase(&self.own).await.map_err(JobsError::from) {
            Err(error) if !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }
}

fn lease_of(node: &NodeRow) -> Duration {
    Duration::from_millis(node.lease.max(0).unsigned_abs())
}
