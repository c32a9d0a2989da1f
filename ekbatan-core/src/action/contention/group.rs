//! What several calls are to commit together.
//!
//! What always holds: a group's rows are those that its members would have left one after
//! another, each a version above the one before it, and its records are those of its members,
//! in their order.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::turn::Told;
use super::{Coalesced, HeldLease};
use crate::action::effect::Effect;
use crate::action::parts::ShardBatch;
use crate::db::{ActionId, ChangeKind, CommitBatch, Database, OpenAction, RowChange};
use crate::domain::Value;
use crate::repository::RowKey;
use crate::shard::Fencing;

/// One call's part of a group, beside its rows.
pub(super) struct Member {
    /// Its place in the line, which it takes again if it has to run again.
    pub(super) ticket: u64,
    pub(super) action: ActionId,
    pub(super) options: Coalesced,
    /// Whether it ran before, in a group that was refused.
    pub(super) ran_before: bool,
    /// Whether the caller wants to know how far the shard has come.
    pub(super) token: bool,
    pub(super) effects: Vec<Box<dyn Effect>>,
    pub(super) tell: oneshot::Sender<Told>,
    /// Whoever asks for the outcome waits, also when the caller is gone.
    pub(super) open: OpenAction,
}

/// Whether a plan can join a group.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fit {
    Joins,
    /// It can join the next one.
    Full,
    /// It has to commit by itself.
    Apart,
}

/// The group so far.
pub(super) struct Group {
    /// What the first member chose.
    pub(super) options: Coalesced,
    pub(super) members: Vec<Member>,
    /// The lease's fence and where it stands, if the group commits under one.
    pub(super) fencing: Option<Arc<Fencing>>,
    /// The lease, if it is to be given back behind this group.
    pub(super) lease: Option<Box<dyn HeldLease>>,
    database: Option<Arc<Database>>,
    /// The first member that leaves a trace, by which the commit can be looked up.
    traced: Option<ActionId>,
    rows: Vec<RowChange>,
    positions: HashMap<RowKey, usize>,
    records: Vec<RowChange>,
    bytes: usize,
    opened: Option<Instant>,
}

impl Group {
    pub(super) fn new(options: Coalesced) -> Self {
        Self {
            options,
            members: Vec::new(),
            fencing: None,
            lease: None,
            database: None,
            traced: None,
            rows: Vec::new(),
            positions: HashMap::new(),
            records: Vec::new(),
            bytes: 0,
            opened: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// When it has to be committed at the latest.
    pub(super) fn until(&self) -> Option<Instant> {
        self.opened.map(|opened| opened + self.options.time)
    }

    pub(super) fn is_full(&self) -> bool {
        self.members.len() >= self.options.members
            || self.bytes >= self.options.bytes
            || self.until().is_some_and(|until| Instant::now() >= until)
    }

    /// Whether one call's part can be committed with the others'.
    pub(super) fn fit(&self, part: &ShardBatch) -> Fit {
        let here = self.database.as_ref();
        if here.is_some_and(|database| database.shard != part.database.shard) {
            return Fit::Apart;
        }
        let follows = |row: &RowChange| match self.positions.get(&key(row)) {
            None => true,
            // One who read around the group, or adds a row that is there, is refused by the
            // database alone.
            Some(at) => {
                row.kind == ChangeKind::Update
                    && row.expected_version() == self.rows[*at].next_version()
            }
        };
        if !part.batch.changes.iter().all(follows) {
            return Fit::Apart;
        }
        match !self.is_empty() && self.bytes + size(&part.batch) > self.options.bytes {
            true => Fit::Full,
            false => Fit::Joins,
        }
    }

    /// Takes a member in, with what it commits, if that is anything.
    pub(super) fn join(&mut self, member: Member, part: Option<ShardBatch>) {
        self.opened.get_or_insert_with(Instant::now);
        if let Some(ShardBatch { database, batch }) = part {
            self.bytes += size(&batch);
            self.database.get_or_insert(database);
            self.traced.get_or_insert(member.action);
            self.records.extend(batch.records);
            batch.changes.into_iter().for_each(|row| self.merge(row));
        }
        self.members.push(member);
    }

    fn merge(&mut self, row: RowChange) {
        let Some(at) = self.positions.get(&key(&row)).copied() else {
            self.positions.insert(key(&row), self.rows.len());
            return self.rows.push(row);
        };
        let first = &mut self.rows[at];
        let (expected, next) = (first.expected_version(), row.next_version());
        let stored = match first.kind {
            ChangeKind::Insert => next,
            ChangeKind::Update => expected,
        };
        first.values = row.values;
        first.steps = next - expected;
        if let Some(version) = first.table.table.version {
            first.values[version] = Value::Int(stored);
        }
    }

    /// The whole as one batch; nothing, if no member changed anything.
    pub(super) fn take_batch(&mut self) -> Option<(Arc<Database>, CommitBatch)> {
        let (database, action) = (self.database.take()?, self.traced.take()?);
        let mut records = std::mem::take(&mut self.records);
        // Stable: each table's records keep their order, and each table is written at once.
        records.sort_by_key(|record| record.table.table.key());
        let batch = CommitBatch {
            action,
            changes: std::mem::take(&mut self.rows),
            records,
            fences: self.fencing.as_ref().map(|it| it.checks()).unwrap_or_default(),
            traceable: true,
        };
        Some((database, batch))
    }
}

fn key(row: &RowChange) -> RowKey {
    (row.table.table.key(), row.id)
}

/// About how many bytes a batch takes to send.
fn size(batch: &CommitBatch) -> usize {
    let of_value = |value: &Value| match value {
        Value::Text(text) | Value::Json(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        _ => 16,
    };
    let rows = batch.changes.iter().chain(&batch.records);
    rows.flat_map(|row| &row.values).map(of_value).sum()
}
