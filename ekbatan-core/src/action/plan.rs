//! The plan: the changes that an action stages, as data.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::PlanError;
use super::effect::{Closure, Effect};
use crate::db::{
    ChangeKind, Committed, StageResult, Staged, StagedExpectation, stage_changed, stage_expected,
    stage_new,
};
use crate::domain::{
    Addable, Changed, Deletable, Entity, Event, New, Stored, Table, TableKey, Updatable, Value,
    payload_text,
};
use crate::outbox::{EnqueueStep, EventRecord};
use crate::repository::PendingRow;

/// The changes that an action has staged so far. Every attempt starts with an empty plan, and
/// a plan is committed as a whole.
///
/// Staging returns the value as it will be after the commit. A mistake, such as staging a row
/// twice, is remembered and fails the call before anything is sent.
pub struct ActionPlan {
    pub(super) now: DateTime<Utc>,
    rows: Vec<Staged>,
    expected: Vec<StagedExpectation>,
    events: Vec<EventRecord>,
    pub(super) calls: Vec<EnqueueStep>,
    /// In a mutex because an effect need not be `Sync`, and a context that is borrowed across an
    /// await must be.
    effects: Mutex<Vec<Box<dyn Effect>>>,
    seen: HashSet<(TableKey, Uuid)>,
    defect: Option<PlanError>,
    /// The staged rows for later calls of the group, if the call can join one.
    pending: Option<Vec<PendingRow>>,
}

/// The content of a plan without mistakes.
pub(super) struct PlanParts {
    pub(super) rows: Vec<Staged>,
    pub(super) expected: Vec<StagedExpectation>,
    pub(super) events: Vec<EventRecord>,
    pub(super) calls: Vec<EnqueueStep>,
    pub(super) effects: Vec<Box<dyn Effect>>,
    pub(super) pending: Vec<PendingRow>,
}

/// A read-only view of a staged change.
#[derive(Debug, Clone, Copy)]
pub struct StagedChange<'p>(&'p Staged);

/// A read-only view of a staged event.
#[derive(Debug, Clone, Copy)]
pub struct StagedEvent<'p>(&'p EventRecord);

impl ActionPlan {
    pub(super) fn new(now: DateTime<Utc>, keeps_pending: bool) -> Self {
        Self {
            now,
            rows: Vec::new(),
            expected: Vec::new(),
            events: Vec::new(),
            calls: Vec::new(),
            effects: Mutex::default(),
            seen: HashSet::new(),
            defect: None,
            pending: keeps_pending.then(Vec::new),
        }
    }

    /// Stages a new row.
    pub fn add<T: Entity>(&mut self, new: impl Addable<T>) -> Stored<T> {
        let new = new.into_new();
        let fallback = Stored { value: new.value.clone(), version: 1, dates: None };
        let staged = stage_new(new, self.now);
        self.stage(staged, fallback)
    }

    /// Stages new rows.
    pub fn add_all<T: Entity>(&mut self, new: impl IntoIterator<Item = New<T>>) -> Vec<Stored<T>> {
        new.into_iter().map(|new| self.add(new)).collect()
    }

    /// Stages a change of a row. The commit fails if the row is no longer at the version that
    /// was read.
    pub fn update<T: Entity>(&mut self, changed: impl Updatable<T>) -> Stored<T> {
        let changed = changed.into_changed();
        let fallback = Stored {
            value: changed.value.clone(),
            version: changed.version.saturating_add(1),
            dates: changed.dates,
        };
        let staged = stage_changed(changed, self.now);
        self.stage(staged, fallback)
    }

    /// Stages changes of rows.
    pub fn update_all<T: Entity>(
        &mut self,
        changed: impl IntoIterator<Item = Changed<T>>,
    ) -> Vec<Stored<T>> {
        changed.into_iter().map(|changed| self.update(changed)).collect()
    }

    /// Stages a soft delete: the row stays in the table in its deleted state, and reads of a
    /// repository no longer return it. The events of a changed row are stored too.
    pub fn delete<T: Entity>(&mut self, row: impl Deletable<T>) -> Stored<T> {
        self.update(row.into_deletion())
    }

    /// Stages soft deletes.
    pub fn delete_all<T: Entity, D: Deletable<T>>(
        &mut self,
        rows: impl IntoIterator<Item = D>,
    ) -> Vec<Stored<T>> {
        rows.into_iter().map(|row| self.delete(row)).collect()
    }

    /// Requires that a row which the action only read is still at the version that was read when
    /// the plan commits. Otherwise the commit fails as stale, and the action runs again.
    ///
    /// Without it, an action is guarded only by the rows that it changes. Two actions that each
    /// read what the other changes could both commit (*write skew*):
    ///
    /// ```
    /// # use ekbatan_core::action::*;
    /// # use ekbatan_core::domain::*;
    /// # use ekbatan_core::repository::ReadError;
    /// # use ekbatan_macros::{Entity, State};
    /// # #[derive(Debug, Clone, State)] pub enum Life { Active }
    /// # #[derive(Debug, Clone, Entity)]
    /// # #[entity(table = "doctors")]
    /// # pub struct Doctor { pub id: Id<Doctor>, pub on_call: bool, pub state: Life }
    /// # #[derive(Debug)] pub enum LeaveError { NobodyLeft, Read(ReadError) }
    /// # impl From<ReadError> for LeaveError { fn from(e: ReadError) -> Self { Self::Read(e) } }
    /// # async fn leave(ctx: &mut ActionContext<'_>, me: Id<Doctor>, other: Id<Doctor>) -> Result<(), LeaveError> {
    /// let other = ctx.get(other).await?;
    /// if !other.on_call {
    ///     return Err(LeaveError::NobodyLeft);
    /// }
    /// // The other doctor cannot leave in the same moment.
    /// ctx.plan().expect(&other);
    /// let me = ctx.get(me).await?.apply(|doctor| doctor.on_call = false);
    /// ctx.plan().update(me);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The check is a part of the commit and takes no round trip of its own. A plan that only
    /// expects rows makes one round trip and writes nothing. A row on another shard than the
    /// changes counts as touching that shard, which needs
    /// [`allow_cross_shard`](super::Execution::allow_cross_shard); it is checked there before
    /// anything is written, and may change before the other shards commit.
    ///
    /// Rows that the plan itself adds or updates need no expectation.
    pub fn expect<T: Entity>(&mut self, read: &Stored<T>) {
        self.expect_row(read, true);
    }

    /// Requires that a row is still at the version that was read, as [`expect`](Self::expect) does, and
    /// locks nothing. For a row that many actions read and that hardly ever changes, such as a switch:
    /// they do not meet at it.
    ///
    /// The commit compares the version in its own transaction. Somebody else may change the row while
    /// this one commits, and then both commit. Who changes the row, and needs that no commit is
    /// left that has found it as it was, waits for
    /// [`transaction_barrier`](crate::shard::Shard::transaction_barrier) of the shard after the change.
    ///
    /// ```
    /// # use ekbatan_core::action::*;
    /// # use ekbatan_core::domain::*;
    /// # use ekbatan_core::repository::ReadError;
    /// # use ekbatan_macros::{Entity, State};
    /// # #[derive(Debug, Clone, PartialEq, State)] pub enum Life { Open, Closed }
    /// # #[derive(Debug, Clone, Entity)]
    /// # #[entity(table = "auctions")]
    /// # pub struct Auction { pub id: Id<Auction>, pub state: Life }
    /// # #[derive(Debug, Clone, Entity)]
    /// # #[entity(table = "bids")]
    /// # pub struct Bid { pub id: Id<Bid>, pub auction: Id<Auction>, pub state: Life }
    /// # #[derive(Debug)] pub enum BidError { Closed, Read(ReadError) }
    /// # impl From<ReadError> for BidError { fn from(e: ReadError) -> Self { Self::Read(e) } }
    /// # async fn bid(ctx: &mut ActionContext<'_>, auction: Id<Auction>) -> Result<(), BidError> {
    /// let auction = ctx.get(auction).await?;
    /// if auction.state == Life::Closed {
    ///     return Err(BidError::Closed);
    /// }
    /// // Bids do not wait for each other, and none commits that has not found the auction open.
    /// ctx.plan().expect_unlocked(&auction);
    /// let bid = Bid { id: ctx.new_id(), auction: auction.id, state: Life::Open };
    /// ctx.plan().add(New::new(bid, ()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A row of another shard than the changes is compared in another transaction, before theirs begins.
    pub fn expect_unlocked<T: Entity>(&mut self, read: &Stored<T>) {
        self.expect_row(read, false);
    }

    fn expect_row<T: Entity>(&mut self, read: &Stored<T>, is_locked: bool) {
        match stage_expected(read) {
            Ok(expected) => self.expected.push(StagedExpectation { is_locked, ..expected }),
            Err(error) => self.fail(error.into()),
        }
    }

    /// Stages a closure to run once the commit is known. Effects run in the order of their
    /// staging. None runs if the action fails.
    pub fn after_commit<F, Fut, E>(&mut self, name: impl Into<String>, run: F)
    where
        F: FnOnce(Committed) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
    {
        self.effect(Closure { name: name.into(), run });
    }

    /// Stages an [`Effect`].
    pub fn effect(&mut self, effect: impl Effect) {
        self.effects.get_mut().unwrap_or_else(PoisonError::into_inner).push(Box::new(effect));
    }

    /// Every staged change, in order.
    pub fn changes(&self) -> impl ExactSizeIterator<Item = StagedChange<'_>> {
        self.rows.iter().map(StagedChange)
    }

    /// Whether its commit writes something.
    #[doc(hidden)]
    pub fn has_writes(&self) -> bool {
        !self.rows.is_empty() || !self.calls.is_empty()
    }

    /// Every staged event, in order.
    pub fn events(&self) -> impl ExactSizeIterator<Item = StagedEvent<'_>> {
        self.events.iter().map(StagedEvent)
    }

    fn stage<T: Entity>(&mut self, staged: StageResult<T>, fallback: Stored<T>) -> Stored<T> {
        match staged {
            Ok((row, stored, events)) => {
                if !self.seen.insert((row.table.key(), row.id)) {
                    self.fail(PlanError::StagedTwice { model: row.table.model, id: row.id });
                    return stored;
                }
                for event in events {
                    self.record(&row, stored.version, &event);
                }
                self.rows.push(row);
                if let Some(pending) = &mut self.pending {
                    pending.push(PendingRow::new(&stored));
                }
                stored
            }
            Err(error) => {
                self.fail(error.into());
                fallback
            }
        }
    }

    fn record<E: Event>(&mut self, row: &Staged, model_version: i64, event: &E) {
        let name = event.event_name();
        match event.payload().and_then(|payload| payload_text(name, &payload)) {
            Ok(payload) => self.events.push(EventRecord {
                row: self.rows.len(),
                model_id: row.id,
                model: row.table.model,
                model_version,
                name: name.name,
                version: name.version,
                payload,
            }),
            Err(error) => self.fail(PlanError::Payload(error)),
        }
    }

    /// Keeps the first mistake, because later ones may result from it.
    pub(super) fn fail(&mut self, defect: PlanError) {
        self.defect.get_or_insert(defect);
    }

    pub(super) fn into_parts(self) -> Result<PlanParts, PlanError> {
        match self.defect {
            Some(defect) => Err(defect),
            None => {
                let effects = self.effects.into_inner().unwrap_or_else(PoisonError::into_inner);
                let pending = self.pending.unwrap_or_default();
                let Self { rows, mut expected, events, calls, .. } = self;
                if !expected.is_empty() {
                    let changes: HashMap<_, _> =
                        rows.iter().map(|row| ((row.table.key(), row.id), row)).collect();
                    expected.retain(|row| {
                        let change = changes.get(&(row.table.key(), row.id));
                        !change.is_some_and(|change| covers(change, row))
                    });
                }
                Ok(PlanParts { rows, expected, events, calls, effects, pending })
            }
        }
    }
}

/// Whether the change of the expected row ensures that the row is as expected: it expects the version that the
/// change expects, or the one that the change makes.
fn covers(change: &Staged, expected: &StagedExpectation) -> bool {
    let version = change.table.version.and_then(|position| change.values.get(position));
    let Some(Value::Int(version)) = version else { return false };
    match change.kind {
        ChangeKind::Insert | ChangeKind::Delete => expected.version == *version,
        ChangeKind::Update => [*version, version + 1].contains(&expected.version),
    }
}

impl std::fmt::Debug for ActionPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ActionPlan")
            .field("changes", &self.rows.len())
            .field("events", &self.events.len())
            .finish_non_exhaustive()
    }
}

impl<'p> StagedChange<'p> {
    /// The table.
    pub fn table(&self) -> &'static Table {
        self.0.table
    }

    /// How the row changes.
    pub fn kind(&self) -> ChangeKind {
        self.0.kind
    }

    /// The row's id.
    pub fn id(&self) -> Uuid {
        self.0.id
    }

    /// The value of a column. For an update, the version is the expected one.
    pub fn value(&self, column: &str) -> Option<&'p Value> {
        let position = self.0.table.columns.iter().position(|known| known.name == column)?;
        self.0.values.get(position)
    }
}

impl<'p> StagedEvent<'p> {
    /// The event's name.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// The id of the model that emitted the event.
    pub fn model_id(&self) -> Uuid {
        self.0.model_id
    }

    /// The payload, as JSON.
    pub fn payload(&self) -> &'p str {
        &self.0.payload
    }
}
