//! Claims the candidates of a round, and puts off those that stand behind others.
//!
//! Invariant: of the deliveries of one handler and one stream, a node claims only those before
//! which there is none that it has not claimed itself. With the sweep that comes between, this is
//! what keeps the order: the later version of a model can only be committed by a process that has
//! read the earlier one, so the earlier event is stored before the later one.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{Delivery, DeliveryState, LONGEST_RUN};
use ekbatan_core::domain::{Changed, Stored};
use ekbatan_core::repository::Repository;
use ekbatan_core::shard::Shard;
use futures_util::future::join_all;
use uuid::Uuid;

use crate::claims::claimed::{Candidate, Claimed, StreamKey, place, stream_of};
use crate::claims::put_off::{Obstructed, behind_parked, put_off};
use crate::claims::round_writes::{RoundWrites, WriteTerms};
use crate::claims::rows_before::RowsBefore;
use crate::error::EventsError;
use crate::handlers::handler_set::HandlerSet;
use crate::nodes::membership::release;
use crate::read_events::read_events;

/// How many deliveries are claimed together. If another node was faster with one of them, they are
/// claimed once more, run by run.
const TOGETHER: usize = 32;

/// What a round has claimed.
pub(crate) struct ClaimedRound {
    pub(crate) claimed: Vec<Claimed>,
    /// The streams that other nodes handle, and those with a locked row.
    pub(crate) elsewhere: HashSet<StreamKey>,
    /// How many deliveries wait from now on for others before them.
    pub(crate) put_off: usize,
    /// How the writes of the next round are made.
    pub(crate) terms: WriteTerms,
    /// Whether a row is left as it was, because it was locked or its write failed.
    pub(crate) left_rows: bool,
}

/// Claims deliveries of one shard for a node.
pub(crate) struct Claims<'c> {
    pub(crate) shard: &'c Shard,
    pub(crate) deliveries: &'c Repository<Delivery>,
    pub(crate) handlers: &'c HandlerSet,
    pub(crate) node: Uuid,
    /// The deliveries that this node holds already.
    pub(crate) held: &'c HashSet<Uuid>,
    pub(crate) terms: WriteTerms,
}

/// What of a stream can be claimed.
struct Split<'r> {
    /// The first deliveries before which there are only deliveries of this node, as many as there are
    /// candidates.
    run: Vec<Candidate>,
    /// The row that keeps others from being claimed.
    obstacle: Option<&'r Stored<Delivery>>,
    /// The candidates behind it.
    behind: Vec<Candidate>,
}

impl Claims<'_> {
    /// Claims the candidates before which nothing stands, and puts the others off.
    pub(crate) async fn claim(
        &self,
        candidates: Vec<Candidate>,
        now: DateTime<Utc>,
    ) -> Result<ClaimedRound, EventsError> {
        let mut streams: HashMap<StreamKey, Vec<Candidate>> = HashMap::new();
        let mut free = Vec::new();
        for (handler, row) in candidates {
            match stream_of(&handler, &row) {
                Some(key) => streams.entry(key).or_default().push((handler, row)),
                None => free.push((handler, row)),
            }
        }
        let mut runs: Vec<Vec<Candidate>> = free.into_iter().map(|one| vec![one]).collect();
        let Self { deliveries, handlers, held, .. } = *self;
        let before = RowsBefore { deliveries, handlers, held }.read(&mut streams).await?;
        let (mut obstructed, mut elsewhere) = (Vec::new(), HashSet::new());
        for (key, candidates) in streams {
            let rows = before.get(&key).map(Vec::as_slice).unwrap_or_default();
            let Split { run, behind, obstacle } = self.split(candidates, rows, now);
            runs.push(run);
            let Some(obstacle) = obstacle else { continue };
            if obstacle.state == DeliveryState::Claimed && obstacle.node != self.node {
                elsewhere.insert(key);
            }
            obstructed.extend(behind.into_iter().map(|(handler, delivery)| Obstructed {
                delivery,
                behind: obstacle.clone(),
                names: handler.names(),
                behind_parked: behind_parked(&handler),
            }));
        }
        let writes = RoundWrites::begin(self.shard, self.terms);
        let behind = obstructed.iter().map(|one| &one.delivery);
        let behind = behind.chain(obstructed.iter().map(|one| &one.behind));
        let locked = writes.locked(runs.iter().flatten().map(|(_, row)| row).chain(behind)).await?;
        let is_locked = |row: &Stored<Delivery>| locked.contains(&row.id.uuid());
        for run in &mut runs {
            let Some(first) = run.iter().position(|(_, row)| is_locked(row)) else { continue };
            // What comes after it in its stream waits for it. Also without an order, it must not hide other models.
            let (handler, row) = &run[first];
            elsewhere.insert((handler.name, row.stream));
            run.truncate(first);
        }
        // The same for what stands behind a row. If that row is blocked, it may have to be released, too.
        let is_left = |one: &mut Obstructed| is_locked(&one.delivery) || is_locked(&one.behind);
        for Obstructed { delivery, .. } in obstructed.extract_if(.., is_left) {
            let handler = self.handlers.get(&delivery.handler);
            elsewhere.extend(handler.map(|handler| (handler.name, delivery.stream)));
        }
        let together = if writes.is_careful() { 1 } else { TOGETHER };
        let groups = groups(runs, together);
        let claims = groups.into_iter().map(|runs| self.claim_runs(&writes, runs, now));
        // At the same time, so that none waits for a row of the other ones.
        let putting_off = put_off(self.deliveries, &writes, obstructed, now);
        let (claimed, put_off) = tokio::join!(join_all(claims), putting_off);
        let (left_rows, terms) = (writes.left_rows(), writes.end());
        let claimed = self.with_events(claimed.into_iter().flatten().collect()).await?;
        Ok(ClaimedRound { claimed, elsewhere, put_off, terms, left_rows })
    }

    /// Finds the deliveries of a stream that can be claimed. They need not be candidates: those may
    /// be behind more rows than a round looks at.
    fn split<'r>(
        &self,
        candidates: Vec<Candidate>,
        rows: &'r [Stored<Delivery>],
        now: DateTime<Utc>,
    ) -> Split<'r> {
        let mut split = Split { run: Vec::new(), behind: Vec::new(), obstacle: None };
        let Some(handler) = candidates.first().map(|(handler, _)| handler.clone()) else {
            return split;
        };
        let mut held = 0;
        for row in rows {
            let is_open = match row.state {
                DeliveryState::New => true,
                DeliveryState::Waiting => row.due <= now,
                _ => false,
            };
            match (is_open, self.held.contains(&row.id.uuid())) {
                // Others took this node for dead and have released the row. Its run does not know
                // that yet, so it is left alone until the run has ended.
                (true, true) => return split,
                (true, false) => {
                    if split.run.len() == candidates.len() || held + split.run.len() >= LONGEST_RUN
                    {
                        return split;
                    }
                    split.run.push((handler.clone(), row.clone()));
                }
                (false, true) if row.state == DeliveryState::Claimed && row.node == self.node => {
                    held += 1;
                }
                (false, _) => {
                    // Those before it are in the run, or were handled meanwhile.
                    split.behind = candidates;
                    split.behind.retain(|(_, candidate)| place(candidate) > place(row));
                    split.obstacle = Some(row);
                    return split;
                }
            }
        }
        split
    }

    /// Claims runs together.
    async fn claim_runs(
        &self,
        writes: &RoundWrites<'_>,
        runs: Vec<Vec<Candidate>>,
        now: DateTime<Utc>,
    ) -> Vec<Candidate> {
        let changes = runs.iter().flatten().map(|(_, row)| self.claiming(row.clone()));
        let changes: Vec<_> = changes.collect();
        let claiming = async { Ok(self.deliveries.update_all(changes).await?) };
        match writes.answer(claiming).await {
            Ok(Some(claimed)) => {
                let handlers = runs.into_iter().flatten().map(|(handler, _)| handler);
                handlers.zip(claimed).collect()
            }
            // Another node was faster with one of them: each run is tried by itself.
            Err(error) if error.is_stale() => {
                let runs = runs.into_iter().map(|run| self.claim_run(writes, run, now));
                join_all(runs).await.into_iter().flatten().collect()
            }
            // One row may be locked. To try each run now would take too long for one round.
            Ok(None) => Vec::new(),
            Err(error) => {
                writes.note_failure(&error);
                Vec::new()
            }
        }
    }

    fn claiming(&self, row: Stored<Delivery>) -> Changed<Delivery> {
        row.apply(|row| (row.state, row.node) = (DeliveryState::Claimed, self.node))
    }

    /// Claims candidates of one stream. If another node was faster with one of them, those behind
    /// it are given back.
    async fn claim_run(
        &self,
        writes: &RoundWrites<'_>,
        run: Vec<Candidate>,
        now: DateTime<Utc>,
    ) -> Vec<Candidate> {
        let claims = run.into_iter().map(|(handler, row)| async move {
            let claiming = async { Ok(self.deliveries.update(self.claiming(row)).await?) };
            (handler, writes.answer(claiming).await)
        });
        let mut held = Vec::new();
        let mut is_broken = false;
        for (handler, claimed) in join_all(claims).await {
            match claimed {
                Ok(Some(row)) if is_broken => {
                    let releasing = release(self.deliveries, row, now);
                    if let Err(error) = writes.answer(releasing).await {
                        writes.note_failure(&error); // the next check gives it back
                    }
                }
                Ok(Some(row)) => held.push((handler, row)),
                Ok(None) => is_broken = true,
                Err(error) => {
                    is_broken = true;
                    if !error.is_stale() {
                        writes.note_failure(&error);
                    }
                }
            }
        }
        held
    }

    /// Reads the events of claimed deliveries.
    async fn with_events(&self, claimed: Vec<Candidate>) -> Result<Vec<Claimed>, EventsError> {
        if claimed.is_empty() {
            return Ok(Vec::new());
        }
        let ids: HashSet<Uuid> = claimed.iter().map(|(_, row)| row.event_id).collect();
        let events = read_events(self.shard, ids).await?;
        let mut with_events = Vec::with_capacity(claimed.len());
        for (handler, delivery) in claimed {
            match events.get(&delivery.event_id).cloned() {
                Some(event) => with_events.push(Claimed { handler, delivery, event }),
                None => {
                    tracing::error!(handler = %delivery.handler, event = %delivery.event_id, "the event of a delivery was deleted; the delivery is, too");
                    match self.deliveries.erase(&delivery).await.map_err(EventsError::from) {
                        Err(error) if !error.is_stale() => return Err(error),
                        _ => {}
                    }
                }
            }
        }
        Ok(with_events)
    }
}

/// Whole runs, in groups of about `together` deliveries.
fn groups(runs: Vec<Vec<Candidate>>, together: usize) -> Vec<Vec<Vec<Candidate>>> {
    let mut groups: Vec<Vec<Vec<Candidate>>> = Vec::new();
    let mut size = together;
    for run in runs.into_iter().filter(|run| !run.is_empty()) {
        if size >= together {
            groups.push(Vec::new());
            size = 0;
        }
        size += run.len();
        if let Some(group) = groups.last_mut() {
            group.push(run);
        }
    }
    groups
}
