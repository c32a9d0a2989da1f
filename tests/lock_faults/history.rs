//! A history of the leases that were granted and the commits that the database made under them, and
//! whether correct locks can have produced it.
//!
//! Invariants: the check uses no server and no clock. It takes one sort and one scan of the grants,
//! and one scan of the commits.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::holds::{ForceCall, Hold, Overlap, is_handed_on, may_have_ended, of_server, overlap};

/// A lease that was granted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    pub key: String,
    pub token: i64,
    pub process: u32,
    /// Before the lock was requested, in microseconds since 1970.
    pub requested: u64,
    /// After the holder had received the lease, in microseconds since 1970.
    pub received: u64,
}

impl Grant {
    /// The grant of the server, which all leases share that were handed on within one process.
    fn of_server(&self) -> (&str, i64) {
        (&self.key, of_server(self.token))
    }
}

/// The answer that a holder received for its commit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    Committed,
    NotCommitted,
    Unknown,
}

/// A row of the database.
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    pub key: String,
    pub token: i64,
    /// One more than the last sequence that the holder read.
    pub sequence: i64,
}

#[derive(Debug, Clone, Default)]
pub struct History {
    pub grants: Vec<Grant>,
    pub answers: Vec<(String, i64, Answer)>,
    /// In the order of the commits.
    pub commits: Vec<Commit>,
    /// When holders were certain that they held their leases.
    pub holds: Vec<Hold>,
    pub forces: Vec<ForceCall>,
    /// The times within which a fault happened: a session was ended, a server was killed, or a connection
    /// went silent. Such a fault ends grants, and the holders may not notice.
    pub faults: Vec<RangeInclusive<u64>>,
    /// Whether ending one lease of a process by force may end all of them.
    pub force_ends_sessions: bool,
    /// Errors that callers got, and answers that contradict each other.
    pub failures: Vec<String>,
    /// What the lock server still held or queued at the end.
    pub left: Vec<String>,
}

/// Why correct locks cannot have produced a history.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Broken {
    #[error("`{key}`: token {token} was granted twice")]
    GrantedTwice { key: String, token: i64 },
    #[error("`{key}`: token {token} was granted to a request made after {before} was granted")]
    TokenFell { key: String, before: i64, token: i64 },
    #[error("`{key}`: a commit with token {token}, which was never granted")]
    NotGranted { key: String, token: i64 },
    #[error("`{key}`: a commit with token {token} after one with token {before}")]
    OutOfOrder { key: String, before: i64, token: i64 },
    #[error("`{key}`: sequence {sequence} was committed after {before}")]
    Gap { key: String, before: i64, sequence: i64 },
    #[error("`{key}`: the holder of token {token} received the wrong answer {received:?}")]
    WrongAnswer { key: String, token: i64, received: Answer },
    #[error("two holders at one time: {0}")]
    TwoHolders(Box<Overlap>),
    #[error("unexpected: {0:?}")]
    Failed(Vec<String>),
    #[error("held or queued at the end: {0:?}")]
    LeftBehind(Vec<String>),
}

impl History {
    /// The first error, if there is one.
    pub fn check(&self) -> Result<(), Broken> {
        self.check_grants()?;
        self.check_commits()?;
        self.check_answers()?;
        if let Some(found) = overlap(&self.holds, &self.forces, self.force_ends_sessions) {
            return Err(Broken::TwoHolders(Box::new(found)));
        }
        if !self.failures.is_empty() {
            return Err(Broken::Failed(self.failures.clone()));
        }
        if self.left.is_empty() { Ok(()) } else { Err(Broken::LeftBehind(self.left.clone())) }
    }

    /// A request that is made after another grant was received must get a greater token. The order of
    /// two requests that overlap is not known.
    fn check_grants(&self) -> Result<(), Broken> {
        const REQUESTED: u8 = 0;
        const RECEIVED: u8 = 1;
        let mut moments: Vec<(u64, u8, usize)> = Vec::with_capacity(self.grants.len() * 2);
        for (n, grant) in self.grants.iter().enumerate() {
            moments.extend([(grant.requested, REQUESTED, n), (grant.received, RECEIVED, n)]);
        }
        moments.sort_unstable();
        let mut received: HashMap<&str, i64> = HashMap::new();
        let mut seen = HashSet::new();
        let mut floors = vec![i64::MIN; self.grants.len()];
        let first = self.grants.iter().filter(|grant| !is_handed_on(grant.token));
        let taken = first.map(|first| (first.of_server(), first.requested)).collect();
        for (_, what, n) in moments {
            let Grant { key, token, .. } = &self.grants[n];
            let greatest = received.entry(key).or_insert(i64::MIN);
            if what == REQUESTED {
                floors[n] = *greatest;
                continue;
            }
            if !seen.insert((key, token)) {
                return Err(Broken::GrantedTwice { key: key.clone(), token: *token });
            }
            if *token <= floors[n] && !self.may_be_handed_on_late(&self.grants[n], &taken) {
                let before = floors[n];
                return Err(Broken::TokenFell { key: key.clone(), before, token: *token });
            }
            *greatest = (*greatest).max(*token);
        }
        Ok(())
    }

    /// Whether a lease was handed on by a process that may not have noticed that the grant of the
    /// server had ended: by force, or by a fault since the grant was requested.
    fn may_be_handed_on_late(&self, grant: &Grant, taken: &HashMap<(&str, i64), u64>) -> bool {
        let requested = taken.get(&grant.of_server()).copied().unwrap_or_default();
        let overlaps = |fault: &RangeInclusive<u64>| {
            *fault.start() <= grant.received && *fault.end() >= requested
        };
        let fault = || self.faults.iter().any(overlaps);
        is_handed_on(grant.token)
            && (may_have_ended(&self.forces, &grant.key, grant.received) || fault())
    }

    /// Each lease has at most one commit, commits are ordered by token, and each builds on the last.
    fn check_commits(&self) -> Result<(), Broken> {
        let granted: HashSet<(&str, i64)> =
            self.grants.iter().map(|grant| (&*grant.key, grant.token)).collect();
        let mut last: HashMap<&str, (i64, i64)> = HashMap::new();
        for Commit { key, token, sequence } in &self.commits {
            if !granted.contains(&(key, *token)) {
                return Err(Broken::NotGranted { key: key.clone(), token: *token });
            }
            let (before, number) = last.get(&**key).copied().unwrap_or((i64::MIN, 0));
            if *token <= before {
                return Err(Broken::OutOfOrder { key: key.clone(), before, token: *token });
            }
            if *sequence != number + 1 {
                let key = key.clone();
                return Err(Broken::Gap { key, before: number, sequence: *sequence });
            }
            last.insert(key, (*token, *sequence));
        }
        Ok(())
    }

    fn check_answers(&self) -> Result<(), Broken> {
        let committed: HashSet<(&str, i64)> =
            self.commits.iter().map(|commit| (&*commit.key, commit.token)).collect();
        for (key, token, received) in &self.answers {
            let right = match received {
                Answer::Committed => committed.contains(&(&**key, *token)),
                Answer::NotCommitted => !committed.contains(&(&**key, *token)),
                Answer::Unknown => true,
            };
            if !right {
                let (key, token) = (key.clone(), *token);
                return Err(Broken::WrongAnswer { key, token, received: *received });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(token: i64, requested: u64, received: u64) -> Grant {
        Grant { key: "k".to_owned(), token, process: 1, requested, received }
    }

    fn commit(token: i64, sequence: i64) -> Commit {
        Commit { key: "k".to_owned(), token, sequence }
    }

    fn answer(token: i64, answer: Answer) -> (String, i64, Answer) {
        ("k".to_owned(), token, answer)
    }

    /// Two leases that overlap, one that was lost, and their commits.
    fn sound() -> History {
        History {
            grants: vec![grant(5, 10, 20), grant(4, 11, 30), grant(6, 21, 31), grant(9, 40, 50)],
            answers: vec![
                answer(4, Answer::Committed),
                answer(5, Answer::NotCommitted),
                answer(6, Answer::Unknown),
                answer(9, Answer::Unknown),
            ],
            commits: vec![commit(4, 1), commit(9, 2)],
            ..History::default()
        }
    }

    fn broken_by(break_it: impl FnOnce(&mut History)) -> Broken {
        let mut history = sound();
        break_it(&mut history);
        history.check().unwrap_err()
    }

    #[test]
    fn a_sound_history_is_accepted() {
        sound().check().unwrap();
        History::default().check().unwrap();
    }

    #[test]
    fn keys_are_checked_independently() {
        let mut history = sound();
        let other = |grant: &Grant| Grant { key: "l".to_owned(), ..grant.clone() };
        history.grants.extend(sound().grants.iter().map(other));
        history.commits.push(Commit { key: "l".to_owned(), token: 4, sequence: 1 });
        history.check().unwrap();
    }

    #[test]
    fn a_token_granted_twice_is_detected() {
        let broken = broken_by(|history| history.grants.push(grant(9, 5, 60)));
        assert_eq!(broken, Broken::GrantedTwice { key: "k".to_owned(), token: 9 });
    }

    #[test]
    fn a_token_that_falls_is_detected() {
        let broken = broken_by(|history| history.grants.push(grant(8, 51, 60)));
        assert_eq!(broken, Broken::TokenFell { key: "k".to_owned(), before: 9, token: 8 });
    }

    /// The server's grant 1 was requested at 10, and grant 2 was received elsewhere at 30.
    #[test]
    fn a_fault_excuses_only_a_grant_from_before_it_that_is_handed_on() {
        let check = |token: i64, fault: RangeInclusive<u64>| {
            let grants = vec![grant(1 << 16, 10, 15), grant(2 << 16, 20, 30), grant(token, 35, 40)];
            History { grants, faults: vec![fault], ..History::default() }.check()
        };
        let handed_on = (1 << 16) + 1;
        for fault in [20..=20, 5..=10, 40..=45, 5..=45] {
            check(handed_on, fault).unwrap();
        }
        for (token, fault) in [(handed_on, 8..=9), (handed_on, 41..=42), (0, 20..=20)] {
            let fell = Broken::TokenFell { key: "k".to_owned(), before: 2 << 16, token };
            assert_eq!(check(token, fault), Err(fell));
        }
    }

    #[test]
    fn a_commit_without_a_grant_is_detected() {
        let broken = broken_by(|history| history.commits.push(commit(10, 3)));
        assert_eq!(broken, Broken::NotGranted { key: "k".to_owned(), token: 10 });
    }

    #[test]
    fn a_commit_after_that_of_a_later_lease_is_detected() {
        let broken = broken_by(|history| history.commits.push(commit(6, 3)));
        assert_eq!(broken, Broken::OutOfOrder { key: "k".to_owned(), before: 9, token: 6 });
        let twice = broken_by(|history| history.commits.push(commit(9, 3)));
        assert_eq!(twice, Broken::OutOfOrder { key: "k".to_owned(), before: 9, token: 9 });
    }

    #[test]
    fn a_lost_or_overwritten_commit_is_detected() {
        let lost = broken_by(|history| history.commits[1].sequence = 3);
        assert_eq!(lost, Broken::Gap { key: "k".to_owned(), before: 1, sequence: 3 });
        let overwritten = broken_by(|history| history.commits[1].sequence = 1);
        assert_eq!(overwritten, Broken::Gap { key: "k".to_owned(), before: 1, sequence: 1 });
    }

    #[test]
    fn a_wrong_answer_is_detected() {
        for (token, wrong) in [(5, Answer::Committed), (4, Answer::NotCommitted)] {
            let broken = broken_by(|history| history.answers.push(answer(token, wrong)));
            let expected = Broken::WrongAnswer { key: "k".to_owned(), token, received: wrong };
            assert_eq!(broken, expected);
        }
    }

    #[test]
    fn a_lock_left_behind_is_detected() {
        let broken = broken_by(|history| history.left.push("k".to_owned()));
        assert_eq!(broken, Broken::LeftBehind(vec!["k".to_owned()]));
    }
}
