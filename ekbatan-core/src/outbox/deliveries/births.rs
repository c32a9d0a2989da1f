//! The deliveries of a batch: which of them a node of this process claims at once, and what the
//! nodes are told when the batch is committed.
//!
//! Invariant: a node runs nothing of a batch that is not committed. If this is dropped before, the
//! reserved room is given back.

use std::sync::Arc;

use uuid::Uuid;

use super::known_streams::ModelVersion;
use super::owner::Reserved;
use super::{
    Born, DeliveryHub, DeliveryOwner, NewDelivery, PriorityCounts, StoredEvent, Subscriptions,
};
use crate::db::{ChangeKind, StageError, Staged};
use crate::domain::{ShardIdentifier, Value};

/// The deliveries of a batch.
#[derive(Debug, Default)]
pub(crate) struct Births {
    hub: Option<Arc<DeliveryHub>>,
    owners: Vec<Arc<DeliveryOwner>>,
    /// What the batch fans out to. `None`: this process knows no subscriptions.
    subscriptions: Option<Arc<Subscriptions>>,
    versions: Vec<HandledVersion>,
    /// Every model that the batch changes.
    changed: Vec<ModelVersion>,
}

/// The deliveries of one version for one handler.
#[derive(Debug)]
struct HandledVersion {
    handler: Arc<str>,
    of: ModelVersion,
    /// The owner, by its position, if there is one.
    owner: Option<(usize, Reserved)>,
    /// Each with its position among the events of the batch.
    events: Vec<(NewDelivery, usize)>,
    ids: Vec<Uuid>,
    born: Vec<Born>,
}

impl Births {
    /// Of a batch on a shard that fans out to these subscriptions, if any are known.
    pub(crate) fn new(
        hub: &Arc<DeliveryHub>,
        shard: ShardIdentifier,
        subscriptions: Option<Arc<Subscriptions>>,
    ) -> Self {
        Self {
            hub: Some(hub.clone()),
            owners: hub.owners(shard),
            subscriptions,
            versions: Vec::new(),
            changed: Vec::new(),
        }
    }

    /// Takes note of the rows that the batch changes. The first version of a model follows nothing.
    pub(crate) fn note_changes<'r>(&mut self, rows: impl Iterator<Item = &'r Staged>) {
        if self.owners.is_empty() {
            return;
        }
        let updates = rows.filter(|row| row.kind == ChangeKind::Update);
        self.changed = updates
            .filter_map(|row| match row.values.get(row.table.version?)? {
                Value::Int(expected) => {
                    let (model, version) = (row.table.model, expected.checked_add(1)?);
                    Some(ModelVersion { model, id: row.id, version })
                }
                _ => None,
            })
            .collect();
    }

    /// Adds an event that a handler wants. The events of a version come one after another.
    pub(crate) fn add(
        &mut self,
        handler: &Arc<str>,
        of: ModelVersion,
        event: NewDelivery,
        position: usize,
    ) {
        let same = |version: &&mut HandledVersion| version.of == of && version.handler == *handler;
        let mut last = self.versions.iter_mut().rev().take_while(|version| version.of == of);
        match last.find(same) {
            Some(version) => version.events.push((event, position)),
            None => self.versions.push(HandledVersion {
                handler: handler.clone(),
                of,
                owner: None,
                events: vec![(event, position)],
                ids: Vec::new(),
                born: Vec::new(),
            }),
        }
    }

    /// The rows of the deliveries. Those of a version belong to the first node that takes them all.
    /// `event_at` makes an event of its position.
    pub(crate) fn stage(
        &mut self,
        event_at: impl Fn(usize) -> Option<StoredEvent>,
    ) -> Result<Vec<Staged>, StageError> {
        let mut rows = Vec::new();
        for version in &mut self.versions {
            let counts = PriorityCounts::of(version.events.iter().map(|(event, _)| event.priority));
            let handler = &*version.handler;
            let subscriptions = self.subscriptions.as_deref();
            let since = subscriptions.and_then(|all| all.since(handler));
            let is_paused = subscriptions.is_some_and(|all| all.is_paused(handler));
            let is_delayed = version.events.iter().any(|(event, _)| event.is_delayed);
            let owners = self.owners.iter().enumerate();
            let mut owners = owners.filter(|_| !is_paused && !is_delayed);
            version.owner = owners.find_map(|(at, owner)| {
                owner.reserve(since, handler, version.of, counts).map(|reserved| (at, reserved))
            });
            let node = version.owner.map(|(_, reserved)| reserved.node);
            for (event, position) in &version.events {
                let (row, delivery) = event.stage(&version.handler, node)?;
                version.ids.push(row.id);
                rows.push(row);
                if node.is_some() {
                    version.born.extend(event_at(*position).map(|event| Born { delivery, event }));
                }
            }
        }
        Ok(rows)
    }

    /// An event for which a node relies on the answer to the commit, if there is one.
    pub(crate) fn owned_event(&self) -> Option<Uuid> {
        self.versions.iter().find_map(|version| version.born.first().map(|one| one.event.id))
    }

    /// Tells the nodes of this process that the batch is committed. Returns whether it has something
    /// that no node has claimed.
    pub(crate) fn committed(mut self) -> bool {
        let Some(hub) = self.hub.take() else { return false };
        let subscriptions = self.subscriptions.take();
        let since = |handler: &str| subscriptions.as_deref().and_then(|all| all.since(handler));
        let mut has_unowned = subscriptions.is_none();
        for version in &mut self.versions {
            let (born, ids) = (std::mem::take(&mut version.born), std::mem::take(&mut version.ids));
            match version.owner.take() {
                Some((at, reserved)) => {
                    if let Some(owner) = self.owners.get(at) {
                        owner.hand_over(reserved, born);
                    }
                }
                None => {
                    has_unowned = true;
                    for owner in &self.owners {
                        let handler = &*version.handler;
                        owner.await_claims(since(handler), handler, version.of, ids.clone());
                    }
                }
            }
        }
        let has_deliveries = |handler: &str, of: &ModelVersion| {
            self.versions.iter().any(|version| version.of == *of && *version.handler == *handler)
        };
        for owner in &self.owners {
            owner.pass(since, &self.changed, has_deliveries);
        }
        if has_unowned {
            hub.committed();
        }
        has_unowned
    }
}

impl Drop for Births {
    fn drop(&mut self) {
        for version in &mut self.versions {
            if let Some((at, reserved)) = version.owner.take()
                && let Some(owner) = self.owners.get(at)
            {
                owner.give_up(reserved);
            }
        }
    }
}
