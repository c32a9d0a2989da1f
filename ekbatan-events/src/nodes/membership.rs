//! The row of a node, and the rows of others.
//!
//! A node renews its row by raising the version. If another node sees the same version for as
//! long as the lease, it deletes the row, unless it is renewed in the same moment. So no two clocks
//! are compared. Each process is a node of its own, also if several have one name.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{Claimant, Delivery, DeliveryState, OfHandlers};
use ekbatan_core::domain::{Changed, Id, New, Stored};
use ekbatan_core::repository::Repository;
use ekbatan_core::shard::{Databases, Shard};
use ekbatan_macros::{Entity, State};
use futures_util::future::join_all;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::EventsError;
use crate::failure;
use crate::handlers::node_handler::Handler;
use crate::nodes::fences::Fences;

/// How many deliveries are released at a time.
const PAGE: usize = 256;

/// How many locked deliveries a node looks past. Another one that stands still while it looks has locked a page.
const MOST_LOCKED: usize = 10_000;

/// A process that handles events, from its start to its end.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "eventlog.nodes")]
pub(crate) struct NodeRow {
    pub(crate) id: Id<NodeRow>,
    pub(crate) name: String,
    pub(crate) started: DateTime<Utc>,
    pub(crate) state: NodeState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, State)]
pub(crate) enum NodeState {
    Live,
}

/// A node on one shard.
pub(crate) struct Membership {
    nodes: Repository<NodeRow>,
    own: Stored<NodeRow>,
}

/// The other nodes on one shard, as a node sees them.
pub(crate) struct OtherNodes {
    shard: Shard,
    nodes: Repository<NodeRow>,
    deliveries: Repository<Delivery>,
    lease: Duration,
    /// The versions of the nodes, and since when they are the same.
    seen: HashMap<Uuid, (i64, Instant)>,
    /// Those that were silent and could not be deleted.
    stuck: HashSet<Uuid>,
}

impl Membership {
    /// Adds a node.
    pub(crate) async fn join(
        databases: &Databases,
        shard: &Shard,
        name: &str,
        now: DateTime<Utc>,
    ) -> Result<Self, EventsError> {
        let nodes = databases.repository::<NodeRow>().on_shard(shard);
        let row = NodeRow {
            id: Id::from_uuid(Uuid::now_v7()),
            name: name.to_owned(),
            started: now,
            state: NodeState::Live,
        };
        let own = nodes.add(New::new(row, ())).await?;
        Ok(Self { nodes, own })
    }

    pub(crate) fn id(&self) -> Uuid {
        self.own.id.uuid()
    }

    /// Renews the node. `false` if somebody has deleted it: it is lost.
    pub(crate) async fn renew(&mut self) -> Result<bool, EventsError> {
        loop {
            let renewal = self.own.clone().apply(|_| ());
            match self.nodes.update(renewal).await.map_err(EventsError::from) {
                Ok(renewed) => {
                    self.own = renewed;
                    return Ok(true);
                }
                // The answer to an earlier renewal may have been lost. Others may have seen that one long
                // ago, so it is renewed once more.
                Err(error) if error.is_stale() => match self.nodes.find(self.own.id).await? {
                    Some(own) => self.own = own,
                    None => return Ok(false),
                },
                Err(error) => return Err(error),
            }
        }
    }

    /// Deletes the node, at its end.
    pub(crate) async fn leave(&mut self) -> Result<(), EventsError> {
        loop {
            match self.nodes.erase(&self.own).await.map_err(EventsError::from) {
                // A renewal may have been given up, and have happened all the same.
                Err(error) if error.is_stale() => match self.nodes.find(self.own.id).await? {
                    Some(own) => self.own = own,
                    None => return Ok(()),
                },
                left => return left,
            }
        }
    }
}

impl OtherNodes {
    pub(crate) fn new(databases: &Databases, shard: &Shard, lease: Duration) -> Self {
        Self {
            shard: shard.clone(),
            nodes: databases.repository().on_shard(shard),
            deliveries: databases.repository().on_shard(shard),
            lease,
            seen: HashMap::new(),
            stuck: HashSet::new(),
        }
    }

    /// Deletes nodes that do not renew their rows, and releases what nobody holds any more.
    pub(crate) async fn clear_away(
        &mut self,
        own: Uuid,
        fences: &Fences,
        now: DateTime<Utc>,
    ) -> Result<usize, EventsError> {
        let silent = self.silent(own).await?;
        // A row that is locked keeps no other node's deliveries from being released.
        let (stuck, silent): (Vec<_>, Vec<_>) =
            silent.into_iter().partition(|node| self.stuck.contains(&node.id.uuid()));
        self.delete(silent).await;
        let count = self.release_orphans(fences, now).await?;
        self.delete(stuck).await;
        Ok(count)
    }

    /// The nodes that have not renewed their rows for the lease.
    async fn silent(&mut self, own: Uuid) -> Result<Vec<Stored<NodeRow>>, EventsError> {
        let asked = Instant::now();
        let mut nodes = self.nodes.find_all().await?;
        // The answer may have taken long. A version counts from when it was surely there.
        let read = Instant::now();
        self.seen.retain(|id, _| nodes.iter().any(|node| node.id.uuid() == *id));
        self.stuck.retain(|id| self.seen.contains_key(id));
        nodes.retain(|node| {
            let version = node.version();
            let (seen, since) = self.seen.entry(node.id.uuid()).or_insert((version, read));
            if *seen != version {
                (*seen, *since) = (version, read);
            }
            node.id.uuid() != own && asked.saturating_duration_since(*since) >= self.lease
        });
        Ok(nodes)
    }

    async fn delete(&mut self, nodes: Vec<Stored<NodeRow>>) {
        for node in nodes {
            match failure::within(self.lease, self.nodes.erase(&node)).await {
                Ok(()) => {
                    tracing::warn!(node = %node.id, name = %node.name, "a node is silent; its deliveries are taken over");
                }
                Err(error) => {
                    self.stuck.insert(node.id.uuid());
                    tracing::debug!(node = %node.id, error, "a silent node was not deleted; trying again");
                }
            }
        }
    }

    /// Releases deliveries whose node has no row. Those of a relay whose broker can keep a lost node from
    /// sending are released after that has happened.
    async fn release_orphans(
        &self,
        fences: &Fences,
        now: DateTime<Utc>,
    ) -> Result<usize, EventsError> {
        // At the same time: a broker that does not answer keeps only its own relay waiting.
        let of_relays = fences.known().map(|relay| self.release_fenced(fences, relay, now));
        let others = self.release_others(fences, now);
        let (others, of_relays) = tokio::join!(others, join_all(of_relays));
        let mut count = others?;
        for released in of_relays {
            count += released?;
        }
        Ok(count)
    }

    /// Releases the deliveries of handlers that need no fence.
    async fn release_others(
        &self,
        fences: &Fences,
        now: DateTime<Utc>,
    ) -> Result<usize, EventsError> {
        let mut count = 0;
        // All of them now: the next heartbeat may be minutes away.
        loop {
            let orphans = self.orphans(OfHandlers::Except(fences.names()), &HashSet::new()).await?;
            let released = release_all(&self.deliveries, orphans, now).await?;
            if released == 0 {
                break;
            }
            count += released;
        }
        Ok(count)
    }

    /// Releases the deliveries of a relay whose node has no row and can send nothing more.
    async fn release_fenced(
        &self,
        fences: &Fences,
        relay: &Handler,
        now: DateTime<Utc>,
    ) -> Result<usize, EventsError> {
        let mut count = 0;
        // A node that cannot be fenced at present keeps no others waiting.
        let mut unfenced = HashSet::new();
        loop {
            let mut lost: HashMap<Uuid, Vec<Stored<Delivery>>> = HashMap::new();
            for orphan in self.orphans(OfHandlers::Among(relay.names()), &unfenced).await? {
                lost.entry(orphan.node).or_default().push(orphan);
            }
            if lost.is_empty() {
                return Ok(count);
            }
            let releasing = lost.into_iter().map(|(node, orphans)| {
                let (deliveries, shard) = (self.deliveries.clone(), self.shard.identifier());
                let released = fences.release_after(relay, shard, node, async move {
                    release_all(&deliveries, orphans, now).await.unwrap_or_else(|error| {
                        tracing::warn!(%error, "what a lost node had claimed could not be released; trying again");
                        0
                    })
                });
                async move { (node, released.await) }
            });
            for (node, released) in join_all(releasing).await {
                count += released;
                if released == 0 {
                    unfenced.insert(node);
                }
            }
        }
    }

    /// Up to [`PAGE`] claimed deliveries of handlers whose node has no row and is not among `passed_over`, and that
    /// nobody keeps locked.
    async fn orphans(
        &self,
        handlers: OfHandlers,
        passed_over: &HashSet<Uuid>,
    ) -> Result<Vec<Stored<Delivery>>, EventsError> {
        let nodes = self.nodes.find_all().await?;
        let nodes = nodes.iter().map(|node| node.id.uuid()).chain(passed_over.iter().copied());
        let claimant = Claimant::Other(nodes.collect(), handlers);
        let mut size = PAGE;
        loop {
            let claimed = self.shard.claimed(claimant.clone(), size).await?;
            let are_all = claimed.len() < size;
            let mut orphans = self.without_locked(self.without_node(claimed).await?).await?;
            if !orphans.is_empty() || are_all || size > MOST_LOCKED {
                orphans.truncate(PAGE);
                return Ok(orphans);
            }
            // Locked ones may have hidden others.
            size *= 2;
        }
    }

    /// Those of these deliveries that are claimed still, and whose node has no row.
    async fn without_node(&self, ids: Vec<Uuid>) -> Result<Vec<Stored<Delivery>>, EventsError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<_> = ids.into_iter().map(Id::from_uuid).collect();
        let mut rows = self.deliveries.find_by_ids(&ids).await?;
        rows.retain(|row| row.state == DeliveryState::Claimed);
        // A node that joined meanwhile may have claimed them.
        let nodes: HashSet<Uuid> = rows.iter().map(|row| row.node).collect();
        let ids: Vec<_> = nodes.into_iter().map(Id::from_uuid).collect();
        let living = self.nodes.find_by_ids(&ids).await?;
        rows.retain(|row| living.iter().all(|of| of.id.uuid() != row.node));
        Ok(rows)
    }

    /// The release of a locked row would wait, and keep all others waiting.
    async fn without_locked(
        &self,
        mut rows: Vec<Stored<Delivery>>,
    ) -> Result<Vec<Stored<Delivery>>, EventsError> {
        if rows.is_empty() || self.shard.capabilities().single_writer {
            return Ok(rows);
        }
        let ids = rows.iter().map(|row| row.id.uuid()).collect();
        let free = free_deliveries(&self.shard, ids).await?;
        rows.retain(|row| free.contains(&row.id.uuid()));
        Ok(rows)
    }
}

/// Those of these deliveries that no transaction keeps locked.
pub(crate) async fn free_deliveries(
    shard: &Shard,
    ids: Vec<Uuid>,
) -> Result<HashSet<Uuid>, EventsError> {
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    let asking = |transaction| async move {
        Ok::<_, EventsError>(shard.free_deliveries(&transaction, ids).await?)
    };
    Ok(shard.transactions().in_transaction(asking).await?)
}

/// Releases deliveries whose node was lost. Returns how many were still as they were read.
async fn release_all(
    deliveries: &Repository<Delivery>,
    rows: Vec<Stored<Delivery>>,
    now: DateTime<Utc>,
) -> Result<usize, EventsError> {
    let mut count = 0;
    let releases = rows.into_iter().map(|row| {
        let lost = failure::of_lost_node(row.last_error.as_deref());
        let released = row.apply(|row| {
            (row.state, row.node, row.due) = (DeliveryState::New, Uuid::nil(), now);
            row.last_error = Some(lost);
        });
        update(deliveries, released)
    });
    for released in join_all(releases).await {
        count += usize::from(released?);
    }
    Ok(count)
}

/// Lets a delivery wait for a node again, without counting an attempt. `false` if it is not as it was
/// read; then nothing happens. It is due at once, also for nodes whose clocks are behind `now`.
pub(crate) async fn release(
    deliveries: &Repository<Delivery>,
    row: Stored<Delivery>,
    now: DateTime<Utc>,
) -> Result<bool, EventsError> {
    change(deliveries, row, DeliveryState::New, now).await
}

/// The same, but it waits until a time comes.
pub(crate) async fn release_until(
    deliveries: &Repository<Delivery>,
    row: Stored<Delivery>,
    until: DateTime<Utc>,
) -> Result<bool, EventsError> {
    change(deliveries, row, DeliveryState::Waiting, until).await
}

async fn change(
    deliveries: &Repository<Delivery>,
    row: Stored<Delivery>,
    state: DeliveryState,
    due: DateTime<Utc>,
) -> Result<bool, EventsError> {
    let change = row.apply(|row| (row.state, row.node, row.due) = (state, Uuid::nil(), due));
    update(deliveries, change).await
}

/// `false` if the delivery is not as it was read.
async fn update(
    deliveries: &Repository<Delivery>,
    change: Changed<Delivery>,
) -> Result<bool, EventsError> {
    match deliveries.update(change).await.map_err(EventsError::from) {
        Ok(_) => Ok(true),
        Err(error) if error.is_stale() => Ok(false),
        Err(error) => Err(error),
    }
}
