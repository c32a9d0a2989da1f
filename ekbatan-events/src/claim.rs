//! Finds deliveries that nobody handles, and claims them.
//!
//! Invariant: of the deliveries of one handler and one stream, a node claims only those before
//! which there is none that it has not claimed itself. With the sweep that comes between, this is
//! what keeps the order: the later version of a model can only be committed by a process that has
//! read the earlier one, so the earlier event is stored before the later one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{Delivery, DeliveryState, StoredEvent};
use ekbatan_core::domain::Stored;
use ekbatan_core::repository::{Condition, Direction, PageRequest, Repository};
use ekbatan_core::shard::Shard;
use futures_util::future::{join_all, try_join};
use uuid::Uuid;

use crate::error::EventsError;
use crate::handler_set::{Handler, HandlerSet};
use crate::membership::release;
use crate::options::Order;

/// How many deliveries are looked at in one round.
pub(crate) const ROUND: usize = 256;

/// How many deliveries of one handler a node holds at most.
const HELD: usize = 1_024;

/// How many rows may stand before the candidates of a round until each stream is asked by itself.
const OBSTACLES: usize = 512;

/// How many deliveries of a stream a node holds. One that takes long would keep others from being
/// claimed.
const LONGEST_RUN: usize = 16;

/// After which time a delivery behind one that another node handles is looked at again, the first
/// time.
const BEHIND_OTHERS: Duration = Duration::from_millis(50);

/// After which time it is checked whether a delivery is still behind a parked one.
pub(crate) const BEHIND_PARKED: Duration = Duration::from_secs(600);

/// A delivery that this node has claimed, with its event.
pub(crate) struct Claimed {
    pub(crate) handler: Arc<Handler>,
    pub(crate) delivery: Stored<Delivery>,
    pub(crate) event: StoredEvent,
}

impl Claimed {
    /// The stream whose deliveries are handled one after another; `None` without an order.
    pub(crate) fn stream(&self) -> Option<StreamKey> {
        stream_of(&self.handler, &self.delivery)
    }
}

/// A handler and a model.
pub(crate) type StreamKey = (&'static str, Uuid);

fn stream_of(handler: &Handler, delivery: &Delivery) -> Option<StreamKey> {
    (handler.options.order == Order::PerModel).then_some((handler.name, delivery.stream))
}

/// The place of a delivery in its stream.
pub(crate) fn place(delivery: &Delivery) -> (i64, i64, Uuid) {
    (delivery.model_version, delivery.event_index, delivery.event_id)
}

/// A delivery that could be claimed.
type Candidate = (Arc<Handler>, Stored<Delivery>);

/// A delivery, and the row before it that this node does not hold.
type Obstructed = (Stored<Delivery>, Stored<Delivery>);

/// Claims deliveries of one shard for a node.
pub(crate) struct Claims<'c> {
    pub(crate) shard: &'c Shard,
    pub(crate) deliveries: &'c Repository<Delivery>,
    pub(crate) handlers: &'c HandlerSet,
    pub(crate) node: Uuid,
    /// The deliveries that this node holds already.
    pub(crate) held: &'c HashSet<Uuid>,
}

impl Claims<'_> {
    /// The oldest deliveries that are due, at most as many of each handler as it has room for.
    pub(crate) async fn candidates(
        &self,
        room: &HashMap<&'static str, usize>,
        now: DateTime<Utc>,
    ) -> Result<Vec<Candidate>, EventsError> {
        let names = self.handlers.names();
        let open =
            names.filter(|(_, handler)| room.get(handler.name).is_some_and(|room| *room > 0));
        let open: Vec<String> = open.map(|(name, _)| name.to_owned()).collect();
        if open.is_empty() {
            return Ok(Vec::new());
        }
        let wanted = Delivery::HANDLER.is_in(open);
        let page = |condition: Condition<Delivery>| {
            let request = PageRequest::first(ROUND).filter(condition & wanted.clone());
            self.deliveries.page(request.order_by(Delivery::DUE, Direction::Ascending))
        };
        // A new delivery is due whatever the clock of the process says that committed it.
        let new = page(Delivery::STATE.eq(DeliveryState::New));
        let waiting = page(Delivery::STATE.eq(DeliveryState::Waiting) & Delivery::DUE.le(now));
        let (new, waiting) = try_join(new, waiting).await?;
        let mut left = room.clone();
        let mut candidates = Vec::new();
        for row in new.rows.into_iter().chain(waiting.rows) {
            let Some(handler) = self.handlers.get(&row.handler) else { continue };
            let Some(left) = left.get_mut(handler.name).filter(|left| **left > 0) else { continue };
            *left -= 1;
            candidates.push((handler.clone(), row));
        }
        Ok(candidates)
    }

    /// Claims the candidates before which nothing stands, and puts the others off.
    pub(crate) async fn claim(
        &self,
        candidates: Vec<Candidate>,
        now: DateTime<Utc>,
    ) -> Result<Vec<Claimed>, EventsError> {
        let mut streams: HashMap<StreamKey, Vec<Candidate>> = HashMap::new();
        let mut free = Vec::new();
        for (handler, row) in candidates {
            match stream_of(&handler, &row) {
                Some(key) => streams.entry(key).or_default().push((handler, row)),
                None => free.push((handler, row)),
            }
        }
        let mut runs: Vec<Vec<Candidate>> = free.into_iter().map(|one| vec![one]).collect();
        let before = self.rows_before(&mut streams).await?;
        let mut obstructed = Vec::new();
        for (key, candidates) in streams {
            let rows = before.get(&key).map(Vec::as_slice).unwrap_or_default();
            let (run, behind) = self.split(candidates, rows, now);
            runs.push(run);
            obstructed.extend(behind);
        }
        for (row, obstacle) in obstructed {
            self.put_off(row, &obstacle, now).await?;
        }
        let claimed: Vec<_> = join_all(runs.into_iter().map(|run| self.claim_run(run, now))).await;
        self.with_events(claimed.into_iter().flatten().collect()).await
    }

    /// All rows of the streams up to their last candidates, sorted by their places. Sorts the
    /// candidates, too.
    async fn rows_before(
        &self,
        streams: &mut HashMap<StreamKey, Vec<Candidate>>,
    ) -> Result<HashMap<StreamKey, Vec<Stored<Delivery>>>, EventsError> {
        let mut of_any = Vec::new();
        for (key, candidates) in streams.iter_mut() {
            candidates.sort_by_key(|(_, row)| place(row));
            let Some((handler, last)) = candidates.last() else { continue };
            let up_to = Delivery::STREAM.eq(last.stream)
                & Delivery::HANDLER.is_in(self.names_of(handler))
                & Delivery::MODEL_VERSION.le(last.model_version);
            of_any.push((*key, candidates.len(), up_to));
        }
        let mut found: HashMap<StreamKey, Vec<Stored<Delivery>>> = HashMap::new();
        let any = of_any.iter().map(|(_, _, condition)| condition.clone());
        let Some(any) = any.reduce(|a, b| a | b) else { return Ok(found) };
        let page = self.deliveries.page(PageRequest::first(OBSTACLES).filter(any)).await?.rows;
        if page.len() < OBSTACLES {
            for row in page {
                let Some(handler) = self.handlers.get(&row.handler) else { continue };
                found.entry((handler.name, row.stream)).or_default().push(row);
            }
        } else {
            // Long streams: of each, as many of the first rows as decide.
            for (key, candidates, up_to) in of_any {
                let size = candidates + self.held.len().min(HELD) + 1;
                let request = PageRequest::first(size)
                    .filter(up_to.clone())
                    .order_by(Delivery::MODEL_VERSION, Direction::Ascending);
                let mut rows = self.deliveries.page(request).await?.rows;
                // Of the last version there may be more events, and earlier ones.
                if let Some(last) = rows.last().filter(|_| rows.len() == size) {
                    let version = last.model_version;
                    let of_last = up_to & Delivery::MODEL_VERSION.eq(version);
                    let request = PageRequest::first(size)
                        .filter(of_last)
                        .order_by(Delivery::EVENT_INDEX, Direction::Ascending);
                    rows.retain(|row| row.model_version < version);
                    rows.extend(self.deliveries.page(request).await?.rows);
                }
                found.insert(key, rows);
            }
        }
        found.values_mut().for_each(|rows| rows.sort_by_key(|row| place(row)));
        Ok(found)
    }

    fn names_of(&self, handler: &Handler) -> Vec<String> {
        let aliases = handler.options.aliases.iter().cloned();
        std::iter::once(handler.name.to_owned()).chain(aliases).collect()
    }

    /// The first deliveries of a stream before which there are only deliveries of this node, as
    /// many as there are candidates, and the candidates behind another row, with that row. The
    /// first ones need not be candidates: those may be behind more rows than a round looks at.
    fn split(
        &self,
        candidates: Vec<Candidate>,
        rows: &[Stored<Delivery>],
        now: DateTime<Utc>,
    ) -> (Vec<Candidate>, Vec<Obstructed>) {
        let mut run = Vec::new();
        let Some(handler) = candidates.first().map(|(handler, _)| handler.clone()) else {
            return (run, Vec::new());
        };
        let mut held = 0;
        for row in rows {
            let is_open = match row.state {
                DeliveryState::New => true,
                DeliveryState::Waiting => row.due <= now,
                _ => false,
            };
            if is_open {
                if run.len() == candidates.len() || held + run.len() >= LONGEST_RUN {
                    break;
                }
                run.push((handler.clone(), row.clone()));
            } else if self.holds(row) {
                held += 1;
            } else {
                // Those before it are in the run, or were handled meanwhile.
                let behind = candidates.into_iter().map(|(_, candidate)| candidate);
                let behind = behind.filter(|candidate| place(candidate) > place(row));
                return (run, behind.map(|candidate| (candidate, row.clone())).collect());
            }
        }
        (run, Vec::new())
    }

    fn holds(&self, row: &Stored<Delivery>) -> bool {
        row.state == DeliveryState::Claimed
            && row.node == self.node
            && self.held.contains(&row.id.uuid())
    }

    /// Lets a candidate wait for the row before it, so that the next rounds find others.
    async fn put_off(
        &self,
        row: Stored<Delivery>,
        obstacle: &Stored<Delivery>,
        now: DateTime<Utc>,
    ) -> Result<(), EventsError> {
        // The version tells how often it was put off.
        let pause = BEHIND_OTHERS * u32::try_from(row.version()).unwrap_or(1).clamp(1, 32);
        let (state, due) = match obstacle.state {
            DeliveryState::New => return Ok(()),
            DeliveryState::Claimed => (DeliveryState::Waiting, now + pause),
            DeliveryState::Waiting => (DeliveryState::Waiting, obstacle.due.max(now + pause)),
            DeliveryState::Parked | DeliveryState::Blocked => {
                (DeliveryState::Blocked, now + BEHIND_PARKED)
            }
        };
        let change = row.apply(|row| (row.state, row.due) = (state, due));
        let changed = match self.deliveries.update(change).await.map_err(EventsError::from) {
            Ok(changed) => changed,
            Err(error) if error.is_stale() => return Ok(()),
            Err(error) => return Err(error),
        };
        if state == DeliveryState::Blocked {
            // Whoever releases the parked row looks for blocked ones afterwards. It may have done
            // so just before this one was blocked; the obstacle may be one that it is just
            // releasing, so that the parked row itself is looked for.
            let names = self.handlers.get(&changed.handler).map(|of| self.names_of(of));
            let parked = Delivery::STREAM.eq(changed.stream)
                & Delivery::HANDLER.is_in(names.unwrap_or_default())
                & Delivery::STATE.eq(DeliveryState::Parked);
            if !self.deliveries.exists_where(parked).await? {
                release(self.deliveries, changed, now).await?;
            }
        }
        Ok(())
    }

    /// Claims candidates of one stream. If another node was faster with one of them, those behind
    /// it are given back.
    async fn claim_run(&self, run: Vec<Candidate>, now: DateTime<Utc>) -> Vec<Candidate> {
        let claims = run.into_iter().map(|(handler, row)| async move {
            let change = row.apply(|row| {
                (row.state, row.node) = (DeliveryState::Claimed, self.node);
            });
            let claimed = self.deliveries.update(change).await.map_err(EventsError::from);
            (handler, claimed)
        });
        let mut held = Vec::new();
        let mut is_broken = false;
        for (handler, claimed) in join_all(claims).await {
            match claimed {
                Ok(row) if is_broken => {
                    if let Err(error) = release(self.deliveries, row, now).await {
                        tracing::warn!(%error, "a delivery was not given back; the next check does it");
                    }
                }
                Ok(row) => held.push((handler, row)),
                Err(error) => {
                    is_broken = true;
                    if !error.is_stale() {
                        tracing::warn!(%error, "deliveries were not claimed");
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
        let events = self.shard.events(ids.into_iter().collect()).await?;
        let events: HashMap<Uuid, StoredEvent> =
            events.into_iter().map(|event| (event.id, event)).collect();
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
