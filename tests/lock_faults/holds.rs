//! When leases were held, and whether two of one key were held at one time.
//!
//! Invariants: a hold is what its holder can be certain of. It begins with the first look that finds
//! the lease held, and ends with the last one, each counted from before the look. In between the
//! lease was held, because a lease that has ended does not come back.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::{Deserialize, Serialize};

/// The bits of a token that count the hand-offs within a process.
const HAND_OFF_BITS: u32 = 16;

/// A lease, as its holder saw it. All times are in microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    pub key: String,
    pub token: i64,
    pub process: u32,
    /// Before the lock was requested.
    pub requested: u64,
    /// Before the first look that found it held.
    pub from: u64,
    /// Before the last look that found it held.
    pub until: u64,
    pub end: End,
}

/// How a lease ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum End {
    /// With the answer of the release.
    Released(bool),
    Dropped,
    Expired,
    /// By the call with this id, in the same process.
    ForcedHere(String),
    /// For this reason.
    Lost(String),
}

/// A release by force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ForceCall {
    pub id: String,
    pub key: String,
    pub called: u64,
    /// `None` while there is no answer, which may stay so if the process is killed.
    pub answered: Option<u64>,
    /// Whether it ended a lease; `None` if that is unknown.
    pub ended: Option<bool>,
}

/// Two holders of one key at one time.
#[derive(Debug, PartialEq)]
pub struct Overlap {
    pub first: Hold,
    pub second: Hold,
    /// The releases by force that came near them.
    pub forces: Vec<ForceCall>,
    /// The number of such pairs in the history.
    pub of: usize,
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, second, forces, of } = self;
        let common = first.until.min(second.until) - second.from;
        write!(f, "for {common} us, the first of {of}:\n  {first:?}\n  {second:?}")?;
        forces.iter().try_for_each(|call| write!(f, "\n  {call:?}"))
    }
}

/// The first two holds that correct locks cannot have granted, if there are any. A release by force
/// excuses one holder that goes on believing: the grant that it ended.
pub fn overlap(holds: &[Hold], forces: &[ForceCall], ends_sessions: bool) -> Option<Overlap> {
    let mut of_key: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in holds.iter().filter(|hold| hold.from < hold.until) {
        of_key.entry(&hold.key).or_default().push(hold);
    }
    let mut excuses = Excuses::of(holds, forces);
    let (mut first, mut count) = (None, 0);
    for holds in of_key.values_mut() {
        holds.sort_by_key(|hold| hold.from);
        for (n, earlier) in holds.iter().enumerate() {
            let later = holds[n + 1..].iter().take_while(|later| later.from < earlier.until);
            for later in later {
                // The one that was forced out has the smaller token.
                let (old, new) =
                    if earlier.token < later.token { (earlier, later) } else { (later, earlier) };
                let excused =
                    excuses.excuse(old, new) || (ends_sessions && excuses.session_ended(old, new));
                if !excused {
                    count += 1;
                    first.get_or_insert(((*earlier).clone(), (*later).clone()));
                }
            }
        }
    }
    first.map(|(first, second)| {
        let (begin, end) = (first.requested.min(second.requested), first.until.max(second.until));
        let near = |call: &&ForceCall| {
            call.key == first.key
                && call.called <= end
                && call.answered.is_none_or(|answered| answered >= begin)
        };
        let forces = forces.iter().filter(near).cloned().collect();
        Overlap { first, second, forces, of: count }
    })
}

struct Excuses<'h> {
    forces: &'h [ForceCall],
    /// The grant that each call has ended, as far as it is known.
    ended: HashMap<&'h str, i64>,
    /// When the grants of the server were requested, by key and grant, as far as it is known: by
    /// their first holders.
    requested: HashMap<(&'h str, i64), u64>,
}

impl<'h> Excuses<'h> {
    fn of(holds: &'h [Hold], forces: &'h [ForceCall]) -> Self {
        let here = |hold: &'h Hold| match &hold.end {
            End::ForcedHere(id) => Some((&**id, of_server(hold.token))),
            _ => None,
        };
        let first = holds.iter().filter(|hold| !is_handed_on(hold.token));
        let requested = first.map(|hold| ((&*hold.key, of_server(hold.token)), hold.requested));
        let (ended, requested) = (holds.iter().filter_map(here).collect(), requested.collect());
        Self { forces, ended, requested }
    }

    /// Whether the old holder may have been forced out before the new one came. Each call can have
    /// ended one grant only, so it is used up.
    fn excuse(&mut self, old: &Hold, new: &Hold) -> bool {
        let grant = of_server(old.token);
        let of_grant = |call: &&ForceCall| {
            call.key == old.key
                && self.is_possible(call, old, new)
                && self.ended.get(&*call.id).is_none_or(|ended| *ended == grant)
        };
        // Prefer a call that is known to have ended this grant: the others may excuse other grants.
        let known = |call: &&ForceCall| self.ended.contains_key(&*call.id);
        let calls = self.forces.iter().filter(of_grant);
        let Some(call) = calls.min_by_key(|call| !known(call)) else { return false };
        self.ended.insert(&call.id, grant);
        true
    }

    /// Whether the lease may have ended with its session, because another lease was forced out.
    fn session_ended(&self, old: &Hold, new: &Hold) -> bool {
        self.forces.iter().any(|call| self.is_possible(call, old, new))
    }

    /// Whether a call can have ended the grant of the old hold before the new one began. It may
    /// have done so before the old holder asked: a process hands a grant on until it notices.
    fn is_possible(&self, call: &ForceCall, old: &Hold, new: &Hold) -> bool {
        let requested = self.requested.get(&(&*old.key, of_server(old.token)));
        let is_late_enough = |answered| requested.is_none_or(|requested| answered >= *requested);
        call.ended != Some(false)
            && call.called <= new.from
            && call.answered.is_none_or(is_late_enough)
    }
}

/// Whether a call can have ended a grant of the key that was received at this moment, or before it.
/// Its process may hand such a grant on until it notices.
pub fn may_have_ended(forces: &[ForceCall], key: &str, received: u64) -> bool {
    forces
        .iter()
        .any(|call| call.key == key && call.ended != Some(false) && call.called <= received)
}

/// The part of a token that the server granted.
pub fn of_server(token: i64) -> i64 {
    token >> HAND_OFF_BITS
}

/// Whether a token stands for a grant that was handed on within its process.
pub fn is_handed_on(token: i64) -> bool {
    token & ((1 << HAND_OFF_BITS) - 1) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(token: i64, from: u64, until: u64, end: End) -> Hold {
        let (key, token) = ("k".to_owned(), token << HAND_OFF_BITS);
        Hold { key, token, process: 1, requested: from - 1, from, until, end }
    }

    fn force(id: &str, called: u64, ended: Option<bool>) -> ForceCall {
        let answered = ended.map(|_| called + 5);
        ForceCall { id: id.to_owned(), key: "k".to_owned(), called, answered, ended }
    }

    fn tokens(holds: &[Hold], forces: &[ForceCall]) -> Option<(i64, i64)> {
        let found = overlap(holds, forces, false)?;
        Some((of_server(found.first.token), of_server(found.second.token)))
    }

    #[test]
    fn holds_one_after_the_other_are_accepted() {
        let first = hold(1, 10, 20, End::Released(true));
        let second = hold(2, 20, 30, End::Expired);
        assert_eq!(tokens(&[second, first], &[]), None);
    }

    #[test]
    fn two_holders_at_one_time_are_detected() {
        let holds = [hold(1, 10, 50, End::Dropped), hold(2, 49, 60, End::Dropped)];
        assert_eq!(tokens(&holds, &[]), Some((1, 2)));
        // Also if another lease was held in between.
        let between = hold(3, 12, 13, End::Dropped);
        assert_eq!(overlap(&[&holds[..], &[between]].concat(), &[], false).unwrap().of, 2);
        // Leases of different keys do not exclude each other.
        let other = Hold { key: "l".to_owned(), ..holds[1].clone() };
        assert_eq!(tokens(&[holds[0].clone(), other], &[]), None);
    }

    #[test]
    fn a_force_excuses_a_holder_to_whom_the_ended_grant_was_handed_on() {
        let first = hold(1, 10, 24, End::Released(true));
        // Asked at 29, after the answer at 25.
        let mut handed_on = hold(1, 30, 50, End::Expired);
        handed_on.token += 1;
        let new = hold(2, 26, 60, End::Dropped);
        let holds = [first, handed_on, new];
        assert_eq!(tokens(&holds, &[force("f", 20, Some(true))]), None);
        // A call that was answered before the grant was requested has not ended it.
        assert_eq!(tokens(&holds, &[force("f", 1, Some(true))]), Some((2, 1)));
        assert_eq!(tokens(&holds, &[]), Some((2, 1)));
    }

    #[test]
    fn a_force_excuses_the_holder_that_it_ended() {
        let holds = [hold(1, 10, 50, End::Lost("taken".to_owned())), hold(2, 30, 60, End::Dropped)];
        assert_eq!(tokens(&holds, &[force("f", 20, Some(true))]), None);
        // Also if its process died before it had the answer.
        assert_eq!(tokens(&holds, &[force("f", 20, None)]), None);
        let not_excused = Some((1, 2));
        assert_eq!(tokens(&holds, &[force("f", 31, Some(true))]), not_excused, "it came later");
        assert_eq!(tokens(&holds, &[force("f", 3, Some(true))]), not_excused, "it was over before");
        assert_eq!(tokens(&holds, &[force("f", 20, Some(false))]), not_excused, "it ended nothing");
        let other_key = ForceCall { key: "l".to_owned(), ..force("f", 20, Some(true)) };
        assert_eq!(tokens(&holds, &[other_key]), not_excused);
    }

    #[test]
    fn a_force_that_also_ended_the_successor_is_detected() {
        let victim = hold(1, 10, 19, End::ForcedHere("f".to_owned()));
        let successor = hold(2, 21, 50, End::Lost("taken".to_owned()));
        let holds = [victim, successor, hold(3, 30, 60, End::Dropped)];
        assert_eq!(tokens(&holds, &[force("f", 18, Some(true))]), Some((2, 3)));
        // One call excuses one holder; it may be either of the two.
        let first = hold(1, 10, 25, End::Dropped);
        let holds = [first, holds[1].clone(), holds[2].clone()];
        assert_eq!(tokens(&holds, &[force("f", 18, Some(true))]), Some((2, 3)));
    }

    #[test]
    fn a_session_that_ended_excuses_the_leases_that_it_took_along() {
        let lost = End::Lost("its session ended".to_owned());
        let holds = [hold(1, 10, 50, lost), hold(2, 30, 60, End::Dropped)];
        let elsewhere = ForceCall { key: "l".to_owned(), ..force("f", 20, Some(true)) };
        assert_eq!(overlap(&holds, std::slice::from_ref(&elsewhere), true), None);
        assert!(overlap(&holds, &[elsewhere], false).is_some());
        assert!(overlap(&holds, &[], true).is_some());
    }
}
