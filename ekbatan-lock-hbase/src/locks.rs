//! The locks of a namespace: each change of a row names the state that it has seen.
//!
//! Invariants: a request may be sent twice, and may arrive late. It takes place once at most, and
//! not at all if anything else has happened to the row since. What the server confirms is checked
//! against the row that it then shows.

use std::time::Duration;

use ekbatan_lock::{BackendError, FailureKind, Grant, GrantExtension, Released};
use tokio::time::Instant;
use uuid::Uuid;

use crate::client::{
    Change, Client, Expected, Found, MARKER, Put, RowOp, STATE, in_doubt, milliseconds,
};
use crate::clock::ServerClock;
use crate::names::RowNames;
use crate::row::{LockRow, Taker, place};
use crate::seen::SeenRows;
use crate::state::LockState;

/// How long one that waits keeps its place without a sign of life.
pub(crate) const PLACE: Duration = Duration::from_secs(3);

/// How often others may change a row while this process tries to. Each change is somebody's success.
const TRIES: usize = 32;

/// How far a token may be behind the clock of the server that stamped its grant, in milliseconds.
const BEHIND: u64 = 10_000;

pub(crate) struct Locks {
    pub(crate) client: Client,
    pub(crate) names: RowNames,
    pub(crate) clock: ServerClock,
    seen: SeenRows,
}

/// The answer to one that wants a key.
#[derive(Debug, PartialEq)]
pub(crate) enum Taken {
    /// It has the key, for its whole term from this moment.
    Granted(Grant, Instant),
    /// Another one has the key, or comes first.
    Busy,
    /// It waits among others, with a sign of life of this moment or a little later.
    Waits(Instant),
}

/// A change, and the row after it.
struct Swapped {
    changed: bool,
    row: LockRow,
    asked: Instant,
}

impl Locks {
    pub(crate) fn new(client: Client, names: RowNames) -> Self {
        Self { client, names, clock: ServerClock::default(), seen: SeenRows::default() }
    }

    fn name(&self, key: &str) -> Result<Vec<u8>, BackendError> {
        self.names.row(key).ok_or_else(|| {
            BackendError::new(format!(
                "HBase: the key of {} bytes is too long; rows have names of at most 32767 bytes",
                key.len()
            ))
        })
    }

    /// Notes the row of an answer.
    fn note(&self, key: &str, found: Found) -> Result<LockRow, BackendError> {
        let row = LockRow::read(&self.name(key)?, found.cells)?;
        self.seen.note(key, row.clone());
        Ok(row)
    }

    /// Has the next change of a key begin with a look.
    pub(crate) fn forget(&self, key: &str) {
        self.seen.forget(key);
    }

    /// The server that has the row of a key, as far as it is known.
    pub(crate) fn server_of(&self, key: &str) -> Option<String> {
        self.client.server_of(&self.names.row(key)?)
    }

    /// The operation that looks at the row of a key, after renewing the places of those here that
    /// wait for it.
    fn look_op(&self, key: &str, renewed: &[Uuid]) -> Result<RowOp, BackendError> {
        let places = renewed.iter().map(|owner| sign_of_life(*owner)).collect::<Vec<_>>();
        let change = (!places.is_empty()).then_some(Change::Put(Expected::Anything, places));
        Ok(RowOp { row: self.name(key)?, change })
    }

    pub(crate) async fn look(&self, key: &str) -> Result<LockRow, BackendError> {
        let found = self.client.exchange(self.look_op(key, &[])?).await?;
        self.note(key, found)
    }

    /// Gives a sign of life for one that waits. Returns the row, and a moment before the sign. If the
    /// answer is lost, the caller has its place as before.
    async fn renew(&self, key: &str, owner: Uuid) -> Result<(LockRow, Instant), BackendError> {
        let op = self.look_op(key, &[owner])?;
        let found = self.client.exchange(op).await.map_err(without_effect)?;
        let asked = found.asked;
        Ok((self.note(key, found)?, asked))
    }

    /// Looks at several keys, each after renewing the places of those that wait for it.
    pub(crate) async fn look_at(
        &self,
        keys: &[String],
        renewed: &[Vec<Uuid>],
    ) -> Vec<Result<LockRow, BackendError>> {
        let ops = keys.iter().zip(renewed).map(|(key, renewed)| self.look_op(key, renewed));
        let found = match ops.collect() {
            Ok(ops) => self.client.exchange_all(ops).await,
            Err(error) => keys.iter().map(|_| Err(error.repeated())).collect(),
        };
        let rows = keys.iter().zip(found).map(|(key, found)| self.note(key, found?));
        rows.collect()
    }

    /// The row as it was seen last, if that was for this grant; otherwise as it is. Also returns
    /// whether it is as it is.
    async fn row_of(&self, key: &str, grant: &Grant) -> Result<(LockRow, bool), BackendError> {
        if let Some(row) = self.seen.get(key).filter(|row| grant.token != 0 && row.stands(grant)) {
            return Ok((row, false));
        }
        Ok((self.look(key).await?, true))
    }

    /// Replaces a state. If it has a new lease, this also writes the mark of it.
    async fn swap(
        &self,
        key: &str,
        before: &LockRow,
        (expected, next): (Expected, &LockState),
        place: Option<Uuid>,
    ) -> Result<Swapped, BackendError> {
        let op = self.swap_op(key, before, (expected, next), place)?;
        let found = self.client.exchange(op).await?;
        let (changed, asked) = (found.changed, found.asked);
        let row = self.note(key, found)?;
        // A request that was sent twice finds its own change.
        let changed = changed || row.has(next);
        if changed && row.has(next) && row.stamp() > before.stamp() {
            // Otherwise the server may have repeated the time of the cell before.
            self.clock.note(row.stamp());
        }
        Ok(Swapped { changed, row, asked })
    }

    fn swap_op(
        &self,
        key: &str,
        before: &LockRow,
        (expected, next): (Expected, &LockState),
        place: Option<Uuid>,
    ) -> Result<RowOp, BackendError> {
        let mut puts = vec![Put { qualifier: STATE.to_vec(), value: next.stored(), term: None }];
        let mark_before = before.state().and_then(|it| it.lease.as_ref()).map(|it| it.mark);
        if let Some(lease) = next.lease.as_ref().filter(|lease| Some(lease.mark) != mark_before) {
            let term = Some(Duration::from_millis(lease.term));
            puts.push(Put { qualifier: MARKER.to_vec(), value: lease.marked(), term });
        }
        puts.extend(place.map(sign_of_life));
        Ok(RowOp { row: self.name(key)?, change: Some(Change::Put(expected, puts)) })
    }

    /// Takes a key that is free, or confirms that it was passed on, or enters the queue if the
    /// caller waits.
    pub(crate) async fn take(
        &self,
        key: &str,
        by: &Taker<'_>,
        waits: bool,
    ) -> Result<Taken, BackendError> {
        // A key that was not seen yet is most likely new.
        let guess = self.seen.get(key).filter(LockRow::is_plain).unwrap_or_default();
        self.take_from(key, by, waits, guess, None).await
    }

    /// Like [`take`](Self::take), for a caller that waits already. Begins with a look, because a guess
    /// whose answer is lost may have taken the key, and the caller would have to leave its place.
    pub(crate) async fn take_again(
        &self,
        key: &str,
        by: &Taker<'_>,
    ) -> Result<Taken, BackendError> {
        let (row, renewed) = self.renew(key, by.owner).await?;
        self.take_from(key, by, true, row, Some(renewed)).await
    }

    async fn take_from(
        &self,
        key: &str,
        by: &Taker<'_>,
        waits: bool,
        mut row: LockRow,
        mut renewed: Option<Instant>,
    ) -> Result<Taken, BackendError> {
        for _ in 0..TRIES {
            let now = self.clock.now();
            let unconfirmed = Grant { owner: by.owner, token: 0 };
            let (expected, next, place) = if row.stands(&unconfirmed) {
                (row.expected_to_stand(), row.confirmed(by, now), None)
            } else if let Some(next) = row.taken(by, now) {
                (row.expected(), next, None)
            } else if !waits {
                return Ok(Taken::Busy);
            } else if row.waits(by.owner) {
                if let Some(renewed) = renewed {
                    return Ok(Taken::Waits(renewed));
                }
                // One that asks again keeps its place, which would end without a sign of life.
                let (seen, asked) = self.renew(key, by.owner).await?;
                (row, renewed) = (seen, Some(asked));
                continue;
            } else if let Some(next) = row.entered(by.owner) {
                (row.expected(), next, Some(by.owner))
            } else {
                // A row without a state is free.
                return Err(BackendError::unavailable("HBase: a row has lost its state"));
            };
            let swapped = self.swap(key, &row, (expected, &next), place).await?;
            if swapped.changed && place.is_some() {
                return Ok(Taken::Waits(swapped.asked));
            }
            if swapped.changed {
                // If its token cannot be raised, the caller has the key nevertheless.
                return self.granted(key, by, swapped).await.map_err(in_doubt);
            }
            row = swapped.row;
        }
        Err(often_changed())
    }

    /// Takes a key whose turn has come, after a look. Returns `Busy` if the caller must go on waiting,
    /// `None` if it has lost its place.
    pub(crate) async fn claim(
        &self,
        key: &str,
        by: &Taker<'_>,
    ) -> Result<Option<Taken>, BackendError> {
        let row = match self.seen.get(key) {
            Some(row) => row,
            None => self.look(key).await?,
        };
        if row.is_turn_of(by, self.clock.now()) {
            return self.take_from(key, by, false, row, None).await.map(Some);
        }
        Ok(row.waits(by.owner).then_some(Taken::Busy))
    }

    /// The grant that a change has made, as the row shows it.
    async fn granted(
        &self,
        key: &str,
        by: &Taker<'_>,
        Swapped { mut row, mut asked, .. }: Swapped,
    ) -> Result<Taken, BackendError> {
        for _ in 0..TRIES {
            let Some((grant, _)) = row.standing().filter(|(grant, _)| grant.owner == by.owner)
            else {
                // Its term was shorter than the trip, or an operator has ended it. Or the server
                // hides what it has written, behind a deletion of the same millisecond.
                return Err(BackendError::in_doubt(
                    "HBase: a grant that was confirmed is not there any more",
                ));
            };
            let is_time = u64::try_from(grant.token).is_ok_and(|it| it + BEHIND >= row.stamp());
            if is_time {
                return Ok(Taken::Granted(grant, asked));
            }
            // The clock was not known yet, or this machine has slept.
            let next = row.with_later_token(row.stamp());
            let swapped = self.swap(key, &row, (row.expected_to_stand(), &next), None).await?;
            (row, asked) = (swapped.row, swapped.asked);
        }
        Err(often_changed())
    }

    /// Has a lease that stands last for this time from now.
    pub(crate) async fn extend(
        &self,
        key: &str,
        grant: &Grant,
        term: u64,
    ) -> Result<bool, BackendError> {
        let (mut row, mut fresh) = self.row_of(key, grant).await?;
        for _ in 0..TRIES {
            if !row.stands(grant) {
                if fresh {
                    return Ok(false);
                }
                (row, fresh) = (self.look(key).await?, true);
                continue;
            }
            let next = row.extended(term);
            let expected = row.expected_to_stand();
            let swapped = self.swap(key, &row, (expected, &next), None).await?;
            if swapped.changed {
                return Ok(true);
            }
            (row, fresh) = (swapped.row, true);
        }
        Err(often_changed())
    }

    /// Extends the leases that were seen to stand, with one request for each server. Returns which
    /// of them it has extended; the others may stand nevertheless.
    pub(crate) async fn extend_all(
        &self,
        extensions: &[GrantExtension],
    ) -> Result<Vec<bool>, BackendError> {
        let (mut extended, mut ops) = (vec![false; extensions.len()], Vec::new());
        for (n, of) in extensions.iter().enumerate() {
            let Some(row) = self.seen.get(&of.key).filter(|row| row.stands(&of.grant)) else {
                continue;
            };
            let next = row.extended(milliseconds(of.term));
            let op = self.swap_op(&of.key, &row, (row.expected_to_stand(), &next), None)?;
            ops.push((n, op, next));
        }
        let requests = ops.iter().map(|(_, op, _)| op.clone()).collect();
        let answers = self.client.exchange_all(requests).await;
        for ((n, _, next), answer) in ops.iter().zip(answers) {
            let Ok(found) = answer else { continue };
            let changed = found.changed;
            // A row that is no lock any more concerns its own key only.
            let Ok(row) = self.note(&extensions[*n].key, found) else { continue };
            extended[*n] = changed || row.has(next);
        }
        Ok(extended)
    }

    /// Ends a lease, and passes the key on to the first that waits. A token of zero stands for a
    /// grant whose answer was lost, or for one that waits: then the request that was sent finds a
    /// changed row if it is still on its way.
    pub(crate) async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        let (mut row, fresh) = self.row_of(key, grant).await?;
        if !(fresh || row.stands(grant) && row.is_unwanted()) {
            // Who of those that wait is alive?
            row = self.look(key).await?;
        }
        for _ in 0..TRIES {
            let ours = row.stands(grant);
            let (expected, next) = if ours {
                (row.expected_to_stand(), row.ended(self.clock.now(), false))
            } else if grant.token == 0 {
                (row.expected(), row.without(grant.owner, self.clock.now()))
            } else {
                return Ok(Released { ours: false, wanted: false });
            };
            let swapped = self.swap(key, &row, (expected, &next), None).await?;
            if swapped.changed {
                return Ok(Released { ours, wanted: ours && next.lease.is_some() });
            }
            row = swapped.row;
        }
        Err(often_changed())
    }

    /// Ends the lease that was seen, and uses up a token.
    pub(crate) async fn force(&self, key: &str, seen: &Grant) -> Result<bool, BackendError> {
        let mut row = self.look(key).await?;
        for _ in 0..TRIES {
            if !row.stands(seen) {
                return Ok(false);
            }
            let next = row.ended(self.clock.now(), true);
            let expected = row.expected_to_stand();
            let swapped = self.swap(key, &row, (expected, &next), None).await?;
            if swapped.changed {
                return Ok(true);
            }
            row = swapped.row;
        }
        Err(often_changed())
    }
}

fn sign_of_life(owner: Uuid) -> Put {
    Put { qualifier: place(owner), value: Vec::new(), term: Some(PLACE) }
}

/// The error of a request that leaves everything as it was.
fn without_effect(error: BackendError) -> BackendError {
    match error.kind() {
        FailureKind::InDoubt => error.of_kind(FailureKind::Unavailable),
        _ => error,
    }
}

fn often_changed() -> BackendError {
    BackendError::unavailable("HBase: many processes change the row of the key at the same time")
}
