//! The state of a lock, as it is stored: its holder and its waiters.
//!
//! Invariants: no state is stored twice, because each change has a number of its own. So a change
//! that names the state it has seen takes place only if nothing else has happened since, whenever
//! it arrives. The token stays when the lock is free.

use std::fmt::Write;

use uuid::Uuid;

/// The lock of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockState {
    /// The token of the last grant.
    pub(crate) token: i64,
    /// The number of this change.
    pub(crate) change: u64,
    pub(crate) lease: Option<StoredLease>,
    /// Those that wait, in the order in which they came. Some may have died.
    pub(crate) waiting: Vec<Uuid>,
}

/// The lease that the holder has while its mark stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredLease {
    pub(crate) owner: Uuid,
    /// The number of its mark. An extension writes another mark: of two marks of one number, the
    /// older one with the longer term would come back after the younger one.
    pub(crate) mark: u64,
    /// When it was granted, by the server's clock in milliseconds.
    pub(crate) since: u64,
    /// How long it lasts from its last change, in milliseconds.
    pub(crate) term: u64,
    /// The name of the holder, for operators.
    pub(crate) holder: String,
}

/// What a state begins with.
const FREE: &str = "free";
const HELD: &str = "held";

impl LockState {
    /// The state of a free lock.
    pub(crate) fn free(token: i64) -> Self {
        Self { token, change: fastrand::u64(..), lease: None, waiting: Vec::new() }
    }

    /// `free TOKEN CHANGE`, or `held TOKEN CHANGE MARK OWNER SINCE TERM WAITING HOLDER`, so that
    /// operators can read it. Those that wait are separated by commas.
    pub(crate) fn stored(&self) -> Vec<u8> {
        let Self { token, change, lease, waiting } = self;
        let Some(lease) = lease else {
            return format!("{FREE} {token} {change:016x}").into_bytes();
        };
        let StoredLease { owner, mark, since, term, holder } = lease;
        let mut text = format!("{HELD} {token} {change:016x} {mark:016x} {owner} {since} {term} ");
        for (n, waiter) in waiting.iter().enumerate() {
            // Writing to a text cannot fail.
            let _ = write!(text, "{}{waiter}", if n == 0 { "" } else { "," });
        }
        let _ = write!(text, " {holder}");
        text.into_bytes()
    }

    /// Reads what is stored; `None` if it is no lock.
    pub(crate) fn read(stored: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(stored).ok()?.splitn(9, ' ');
        let kind = parts.next()?;
        let token = parts.next()?.parse().ok()?;
        let change = u64::from_str_radix(parts.next()?, 16).ok()?;
        if kind == FREE {
            let state = Self { token, change, lease: None, waiting: Vec::new() };
            return parts.next().is_none().then_some(state);
        }
        if kind != HELD {
            return None;
        }
        let mark = u64::from_str_radix(parts.next()?, 16).ok()?;
        let owner = parts.next()?.parse().ok()?;
        let since = parts.next()?.parse().ok()?;
        let term = parts.next()?.parse().ok()?;
        let waiting = parts.next()?.split(',').filter(|it| !it.is_empty()).map(str::parse);
        let waiting = waiting.collect::<Result<_, _>>().ok()?;
        let holder = parts.next()?.to_owned();
        let lease = Some(StoredLease { owner, mark, since, term, holder });
        Some(Self { token, change, lease, waiting })
    }

    /// The same state, as another change.
    pub(crate) fn again(&self) -> Self {
        Self { change: fastrand::u64(..), ..self.clone() }
    }
}

impl StoredLease {
    /// The value of its mark.
    pub(crate) fn marked(&self) -> Vec<u8> {
        format!("{:016x}", self.mark).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(holder: &str, waiting: usize) -> LockState {
        LockState {
            token: 1_800_000_000_000,
            change: 7,
            lease: Some(StoredLease {
                owner: Uuid::new_v4(),
                mark: 9,
                since: 1_800_000_000_001,
                term: 90_050,
                holder: holder.to_owned(),
            }),
            waiting: (0..waiting).map(|_| Uuid::new_v4()).collect(),
        }
    }

    #[test]
    fn a_state_is_read_as_it_was_stored() {
        let states = [LockState::free(0), held("", 0), held("a host, 7 | pid", 1), held(" é\n", 3)];
        for state in states {
            assert_eq!(LockState::read(&state.stored()), Some(state));
        }
        assert_eq!(held("", 0).lease.unwrap().marked(), b"0000000000000009");
    }

    #[test]
    fn no_state_is_stored_twice() {
        assert_ne!(LockState::free(1).stored(), LockState::free(1).stored());
        let state = held("", 1);
        assert_ne!(state.again().stored(), state.stored());
    }

    #[test]
    fn what_is_no_state_is_not_read() {
        for stored in [
            &b""[..],
            b"free",
            b"free 1",
            b"free 1 7 more",
            b"free x 7",
            b"kept 1 7",
            b"held 1 7",
            b"held 1 7 9 owner 1 1  h",
            b"\xff",
        ] {
            assert_eq!(LockState::read(stored), None);
        }
    }
}
