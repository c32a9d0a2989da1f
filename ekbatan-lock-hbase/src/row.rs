//! The row of a key as the server shows it, and what may follow it.
//!
//! Invariants: a lease stands while its mark is there, which the server hides when the term is over.
//! Without it the lease is over for ever, because every change that continues a lease asks for the
//! mark. A key is granted to the first of those that wait and live.

use ekbatan_lock::{BackendError, Grant};
use uuid::Uuid;

use crate::client::{Expected, MARKER, STATE};
use crate::messages::data::Cell;
use crate::state::{LockState, StoredLease};

/// How long a key that was passed on is kept for the process that waits. If that process is dead
/// or slow, the next one gets it.
pub(crate) const CONFIRM: u64 = 1_000;

/// The first letter of the columns of those that wait.
const PLACE: char = 'w';

/// The row of one key, or the guess that there is none.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LockRow {
    state: Option<Stored>,
    mark: Option<Vec<u8>>,
    /// When the server wrote the mark, in its milliseconds.
    marked_at: u64,
    /// Those that wait and live.
    living: Vec<Uuid>,
}

#[derive(Debug, Clone, PartialEq)]
struct Stored {
    bytes: Vec<u8>,
    /// When the server wrote it, in its milliseconds.
    stamp: u64,
    state: LockState,
}

/// The column with the sign of life of one that waits.
pub(crate) fn place(owner: Uuid) -> Vec<u8> {
    format!("{PLACE}{owner}").into_bytes()
}

impl LockRow {
    /// Reads the cells of a row.
    pub(crate) fn read(row: &[u8], cells: Vec<Cell>) -> Result<Self, BackendError> {
        let mut read = Self::default();
        for cell in cells {
            let qualifier = cell.qualifier.unwrap_or_default();
            let (value, stamp) = (cell.value.unwrap_or_default(), cell.timestamp.unwrap_or(0));
            if qualifier == STATE {
                let state = LockState::read(&value).ok_or_else(|| {
                    BackendError::new(format!(
                        "HBase: the state stored in the row `{}` is not that of a lock; use a \
                         table of its own for locks",
                        String::from_utf8_lossy(row)
                    ))
                })?;
                read.state = Some(Stored { bytes: value, stamp, state });
            } else if qualifier == MARKER {
                (read.mark, read.marked_at) = (Some(value), stamp);
            } else {
                let text = String::from_utf8(qualifier).unwrap_or_default();
                let owner = text.strip_prefix(PLACE).and_then(|it| Uuid::parse_str(it).ok());
                read.living.extend(owner);
            }
        }
        Ok(read)
    }

    /// What the row has to be for a change of the state that was seen.
    pub(crate) fn expected(&self) -> Expected {
        match &self.state {
            Some(stored) => Expected::State(stored.bytes.clone()),
            None => Expected::Absent,
        }
    }

    /// What the row has to be for a change of a lease that stands.
    pub(crate) fn expected_to_stand(&self) -> Expected {
        match self.lease() {
            Some(lease) => Expected::Marked(self.bytes(), lease.marked()),
            None => self.expected(),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.state.as_ref().map(|stored| stored.bytes.clone()).unwrap_or_default()
    }

    pub(crate) fn state(&self) -> Option<&LockState> {
        self.state.as_ref().map(|stored| &stored.state)
    }

    /// When the state was written, by the server's clock. Zero if there is none.
    pub(crate) fn stamp(&self) -> u64 {
        self.state.as_ref().map_or(0, |stored| stored.stamp)
    }

    /// Whether the state is this one.
    pub(crate) fn has(&self, state: &LockState) -> bool {
        self.state() == Some(state)
    }

    /// The last token; zero if there is none.
    pub(crate) fn token(&self) -> i64 {
        self.state().map_or(0, |state| state.token)
    }

    /// The stored lease, which may be over.
    fn lease(&self) -> Option<&StoredLease> {
        self.state()?.lease.as_ref()
    }

    /// The lease that stands.
    pub(crate) fn standing(&self) -> Option<(Grant, &StoredLease)> {
        let lease = self.lease()?;
        let stands = self.mark.as_deref() == Some(&*lease.marked());
        stands.then_some((Grant { owner: lease.owner, token: self.token() }, lease))
    }

    /// Whether this grant stands. A token of zero stands for any.
    pub(crate) fn stands(&self, grant: &Grant) -> bool {
        self.standing().is_some_and(|(standing, _)| {
            standing.owner == grant.owner && (grant.token == 0 || standing.token == grant.token)
        })
    }

    /// The rest of the term of the lease that stands, in milliseconds.
    pub(crate) fn rest(&self, now: u64) -> Option<u64> {
        let (_, lease) = self.standing()?;
        let until = self.marked_at.saturating_add(lease.term);
        Some(until.saturating_sub(now).clamp(1, lease.term.max(1)))
    }

    /// Whether a change may rely on the row without looking again: it has no lease, so nobody waits.
    pub(crate) fn is_plain(&self) -> bool {
        self.lease().is_none()
    }

    fn waiting(&self) -> &[Uuid] {
        self.state().map_or(&[], |state| &state.waiting)
    }

    /// Whether nobody waits, as far as the state says.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.waiting().is_empty()
    }

    pub(crate) fn waits(&self, owner: Uuid) -> bool {
        self.waiting().contains(&owner)
    }

    /// Those that wait and live, but for one.
    fn living_but(&self, owner: Uuid) -> impl Iterator<Item = Uuid> {
        let waiting = self.waiting().iter().copied();
        waiting.filter(move |it| *it != owner && self.living.contains(it))
    }

    fn next_token(&self, now: u64) -> i64 {
        i64::try_from(now).unwrap_or(i64::MAX).max(self.token().saturating_add(1))
    }

    /// Whether this owner has the key, or may take it.
    pub(crate) fn is_turn_of(&self, by: &Taker<'_>, now: u64) -> bool {
        self.stands(&Grant { owner: by.owner, token: 0 }) || self.taken(by, now).is_some()
    }

    /// The grant of a key that is free, if nobody comes before this owner.
    pub(crate) fn taken(&self, by: &Taker<'_>, now: u64) -> Option<LockState> {
        if self.standing().is_some() {
            return None;
        }
        let first = self.waiting().iter().find(|it| **it == by.owner || self.living.contains(it));
        if first.is_some_and(|first| *first != by.owner) {
            return None;
        }
        let lease = by.lease(now);
        let waiting = self.living_but(by.owner).collect();
        let (token, change) = (self.next_token(now), fastrand::u64(..));
        Some(LockState { token, change, lease: Some(lease), waiting })
    }

    /// The same grant, as one that has confirmed it.
    pub(crate) fn confirmed(&self, by: &Taker<'_>, now: u64) -> LockState {
        let state = self.extended(by.term);
        LockState { lease: Some(by.lease(now)), ..state }
    }

    /// The same grant with another token, because it has shown that the clock is ahead of it.
    pub(crate) fn with_later_token(&self, now: u64) -> LockState {
        let lease = self.lease().map_or(0, |lease| lease.term);
        LockState { token: self.next_token(now), ..self.extended(lease) }
    }

    /// The lease that stands, for this time from now.
    pub(crate) fn extended(&self, term: u64) -> LockState {
        let mut state = self.state().map_or_else(|| LockState::free(0), LockState::again);
        if let Some(lease) = &mut state.lease {
            (lease.mark, lease.term) = (fastrand::u64(..), term);
        }
        state
    }

    /// One more that waits.
    pub(crate) fn entered(&self, owner: Uuid) -> Option<LockState> {
        let state = self.state()?.again();
        let waiting = self.living_but(owner).chain([owner]).collect();
        Some(LockState { waiting, ..state })
    }

    /// The row without one that waits. It is another state in any case, so that a request of that one
    /// which is still on its way finds a changed row.
    pub(crate) fn without(&self, owner: Uuid, now: u64) -> LockState {
        match self.state() {
            Some(state) if self.waits(owner) => {
                let waiting = self.living_but(owner).collect();
                LockState { waiting, ..state.again() }
            }
            Some(state) => state.again(),
            None => LockState::free(self.next_token(now)),
        }
    }

    /// The end of the lease: the first of those that wait has the key for a moment, in which it
    /// confirms that. `uses_token`: an end by force uses up a token.
    pub(crate) fn ended(&self, now: u64, uses_token: bool) -> LockState {
        let owner = self.lease().map(|lease| lease.owner).unwrap_or_default();
        let mut living = self.living_but(owner);
        match living.next() {
            Some(next) => {
                let by = Taker { owner: next, holder: "the next process", term: CONFIRM };
                LockState {
                    token: self.next_token(now),
                    change: fastrand::u64(..),
                    lease: Some(by.lease(now)),
                    waiting: living.collect(),
                }
            }
            None if uses_token => LockState::free(self.next_token(now)),
            None => LockState::free(self.token()),
        }
    }
}

/// One that takes a key.
pub(crate) struct Taker<'t> {
    pub(crate) owner: Uuid,
    pub(crate) holder: &'t str,
    /// In milliseconds.
    pub(crate) term: u64,
}

impl Taker<'_> {
    fn lease(&self, now: u64) -> StoredLease {
        StoredLease {
            owner: self.owner,
            mark: fastrand::u64(..),
            since: now,
            term: self.term,
            holder: self.holder.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    fn taker(owner: Uuid) -> Taker<'static> {
        Taker { owner, holder: "me", term: 5_000 }
    }

    /// The row after a change, with the signs of life of some.
    fn row(state: &LockState, marked: bool, living: &[Uuid]) -> LockRow {
        let cell = |qualifier: &[u8], value: Vec<u8>| Cell {
            row: None,
            qualifier: Some(qualifier.to_vec()),
            timestamp: Some(NOW),
            value: Some(value),
        };
        let mut cells = vec![cell(STATE, state.stored()), cell(b"x", Vec::new())];
        if let Some(lease) = state.lease.as_ref().filter(|_| marked) {
            cells.push(cell(MARKER, lease.marked()));
        }
        cells.extend(living.iter().map(|owner| cell(&place(*owner), Vec::new())));
        LockRow::read(b"r", cells).unwrap()
    }

    #[test]
    fn tokens_grow_whatever_the_clock() {
        let owner = Uuid::new_v4();
        let first = LockRow::default().taken(&taker(owner), NOW).unwrap();
        assert_eq!(first.token, NOW as i64);
        // The clock was set back, or is not known.
        for now in [NOW, NOW - 1_000, 0] {
            let next = row(&first, false, &[]).taken(&taker(owner), now).unwrap();
            assert_eq!(next.token, first.token + 1);
        }
        let free = row(&first, true, &[]).ended(NOW + 9, false);
        assert_eq!((free.token, &free.lease), (first.token, &None));
        assert_eq!(row(&first, true, &[]).ended(NOW + 9, true).token, NOW as i64 + 9);
        let raised = row(&first, true, &[]).with_later_token(NOW + 60_000);
        assert_eq!(raised.token, NOW as i64 + 60_000);
        assert_eq!(raised.lease.unwrap().owner, owner);
    }

    #[test]
    fn a_lease_stands_with_its_own_mark_only() {
        let owner = Uuid::new_v4();
        let first = LockRow::default().taken(&taker(owner), NOW).unwrap();
        let standing = row(&first, true, &[]);
        let grant = Grant { owner, token: first.token };
        assert!(standing.stands(&grant) && standing.stands(&Grant { token: 0, ..grant }));
        assert!(!standing.stands(&Grant { token: 1, ..grant }));
        assert!(!standing.stands(&Grant { owner: Uuid::new_v4(), ..grant }));
        assert!(standing.taken(&taker(Uuid::new_v4()), NOW).is_none());
        assert_eq!(standing.rest(NOW + 1_000), Some(4_000));
        // The mark of an extension is another one, and the older one does not count.
        let extended = standing.extended(1_000);
        let mut older = row(&extended, false, &[]);
        older.mark = Some(first.lease.unwrap().marked());
        assert!(!older.stands(&grant) && older.taken(&taker(Uuid::new_v4()), NOW).is_some());
    }

    #[test]
    fn a_key_is_passed_on_to_the_first_that_lives() {
        let [holder, dead, first, second] = [(); 4].map(|()| Uuid::new_v4());
        let mut state = LockRow::default().taken(&taker(holder), NOW).unwrap();
        for waiter in [dead, first, second] {
            state = row(&state, true, &[dead, first, second]).entered(waiter).unwrap();
        }
        assert_eq!(state.waiting, [dead, first, second]);
        let held = row(&state, true, &[first, second]);
        assert!(held.waits(dead) && !held.is_unwanted());
        let passed = held.ended(NOW, false);
        let lease = passed.lease.clone().unwrap();
        assert_eq!((lease.owner, lease.term), (first, CONFIRM));
        assert_eq!(passed.waiting, [second]);
        assert!(passed.token > state.token);
        // It did not confirm that: the next one takes the key, and nobody else.
        let over = row(&passed, false, &[second]);
        assert!(over.taken(&taker(Uuid::new_v4()), NOW).is_none());
        assert!(over.is_turn_of(&taker(second), NOW));
        let confirmed = row(&passed, true, &[second]).confirmed(&taker(first), NOW + 7);
        let lease = confirmed.lease.unwrap();
        assert_eq!((lease.term, lease.since, lease.holder.as_str()), (5_000, NOW + 7, "me"));
        assert_eq!((confirmed.token, confirmed.waiting), (passed.token, vec![second]));
        let left = held.without(first, NOW);
        assert_eq!(left.waiting, [second]);
    }

    #[test]
    fn a_request_that_was_given_up_finds_another_state() {
        let free = row(&LockState::free(7), false, &[]);
        let owner = Uuid::new_v4();
        let touched = free.without(owner, NOW);
        assert_ne!(touched.stored(), free.state().unwrap().stored());
        assert_eq!(touched.token, 7);
        assert_eq!(LockRow::default().without(owner, NOW).token, NOW as i64);
        let held = LockRow::default().taken(&taker(owner), NOW).unwrap();
        let after = row(&held, true, &[]).without(Uuid::new_v4(), NOW);
        assert_ne!(after.stored(), held.stored());
        assert_eq!((after.token, after.lease), (held.token, held.lease));
    }

    #[test]
    fn a_cell_that_is_no_state_is_named() {
        let cell = Cell {
            row: None,
            qualifier: Some(STATE.to_vec()),
            timestamp: None,
            value: Some(b"x".to_vec()),
        };
        let error = LockRow::read(b"app/k", vec![cell]).unwrap_err();
        assert!(error.to_string().contains("`app/k`") && !error.may_pass(), "{error}");
    }
}
