//! The calls that were enqueued, and their effects.
//!
//! Invariant: what a call found is still so at its commit. So no clock is needed to say whether a
//! call came before its cancelling, or before another call with its key.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::Event;
use crate::requests::{Manner, RequestState};

/// A request that is stored: its call was enqueued by the commit that added it.
#[derive(Debug, Clone, PartialEq)]
pub struct Requested {
    pub id: String,
    pub manner: Manner,
    pub key: String,
    /// The account or the request that enqueued the call.
    pub maker: String,
    /// The version of the account; 0 for a request.
    pub maker_version: i64,
    /// The position among the calls of one commit.
    pub place: i64,
    pub state: RequestState,
}

/// What a call committed.
#[derive(Debug, Clone, PartialEq)]
pub struct CallEffected {
    pub request: String,
    /// Among the calls in turn with its key, from 1; otherwise 0.
    pub position: i64,
    /// What its commit found the request to be.
    pub found: RequestState,
}

#[derive(Debug, Clone, Default)]
pub struct CallHistory {
    pub requests: Vec<Requested>,
    pub effects: Vec<CallEffected>,
}

/// What the calls of a history were.
#[derive(Debug, Default, PartialEq)]
pub struct CallCounts {
    pub requests: usize,
    pub effects: usize,
    pub cancelled_in_time: usize,
    pub cancelled_too_late: usize,
    /// Unique ones that another call has served.
    pub served_by_another: usize,
}

/// Why correct nodes cannot have produced the calls of a history.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum BrokenCalls {
    #[error(
        "the commit of {maker} at version {version} enqueued {wanted} calls, and {stored} are stored"
    )]
    Torn { maker: String, version: i64, wanted: usize, stored: usize },
    #[error("{request:?} is stored, and the commit that enqueued it is not")]
    Orphaned { request: Requested },
    #[error("an effect of the call for {request}, which is not stored")]
    Invented { request: String },
    #[error("the call for {request:?} has {times} effects")]
    Doubled { request: Requested, times: usize },
    #[error("the call for {request:?} is done and has no effect")]
    Lost { request: Requested },
    #[error("the call for {request:?} was cancelled before its effect")]
    Cancelled { request: Requested },
    #[error("no call for {request:?} can be cancelled")]
    NotCancellable { request: Requested },
    #[error("{key}: the positions of calls that ran in turn are {positions:?}")]
    SideBySide { key: String, positions: Vec<i64> },
    #[error("{key}: {later:?} ran before {earlier:?}")]
    OutOfTurn { key: String, earlier: Box<Requested>, later: Box<Requested> },
}

impl CallHistory {
    /// The first error, if there is one.
    pub(super) fn check(&self, events: &[Event], is_all_done: bool) -> Result<(), BrokenCalls> {
        let effects = self.effects_by_request();
        self.check_commits(events, &effects)?;
        let stored: HashSet<&str> = self.requests.iter().map(|request| &*request.id).collect();
        if let Some(unknown) = effects.keys().find(|request| !stored.contains(**request)) {
            return Err(BrokenCalls::Invented { request: (*unknown).to_owned() });
        }
        for request in &self.requests {
            let of_request = effects.get(&*request.id).map(Vec::as_slice).unwrap_or_default();
            check_effects(request, of_request, is_all_done)?;
        }
        self.check_turns(&effects)
    }

    /// What was enqueued and cancelled.
    pub fn counts(&self) -> CallCounts {
        let effects = self.effects_by_request();
        let count = |state: RequestState, has_effect: bool| {
            let is_counted = |request: &&Requested| {
                request.state == state && effects.contains_key(&*request.id) == has_effect
            };
            self.requests.iter().filter(is_counted).count()
        };
        CallCounts {
            requests: self.requests.len(),
            effects: self.effects.len(),
            cancelled_in_time: count(RequestState::Cancelled, false),
            cancelled_too_late: count(RequestState::Cancelled, true),
            served_by_another: count(RequestState::Served, false),
        }
    }

    fn effects_by_request(&self) -> HashMap<&str, Vec<&CallEffected>> {
        let mut effects: HashMap<&str, Vec<&CallEffected>> = HashMap::new();
        for effect in &self.effects {
            effects.entry(&effect.request).or_default().push(effect);
        }
        effects
    }

    /// The calls of a commit are there if the commit is, all of them.
    fn check_commits(
        &self,
        events: &[Event],
        effects: &HashMap<&str, Vec<&CallEffected>>,
    ) -> Result<(), BrokenCalls> {
        let mut wanted: BTreeMap<(&str, i64), usize> = BTreeMap::new();
        for event in events {
            wanted.insert((&event.account, event.version), event.calls);
        }
        for chained in self.requests.iter().filter(|request| request.manner == Manner::Chained) {
            wanted.insert((&chained.id, 0), effects.get(&*chained.id).map_or(0, Vec::len));
        }
        let mut stored: BTreeMap<(&str, i64), usize> = BTreeMap::new();
        for request in &self.requests {
            let commit = (&*request.maker, request.maker_version);
            if !wanted.contains_key(&commit) {
                return Err(BrokenCalls::Orphaned { request: request.clone() });
            }
            *stored.entry(commit).or_default() += 1;
        }
        for (commit, wanted) in wanted {
            let stored = stored.get(&commit).copied().unwrap_or_default();
            if stored != wanted {
                let (maker, version) = (commit.0.to_owned(), commit.1);
                return Err(BrokenCalls::Torn { maker, version, wanted, stored });
            }
        }
        Ok(())
    }

    /// Calls in turn ran one after another. Those of one account, whose commits have an order, ran in
    /// that order.
    fn check_turns(&self, effects: &HashMap<&str, Vec<&CallEffected>>) -> Result<(), BrokenCalls> {
        let mut keys: BTreeMap<&str, Vec<(i64, &Requested)>> = BTreeMap::new();
        for request in self.requests.iter().filter(|request| request.manner == Manner::InTurn) {
            let of_request = effects.get(&*request.id).map(Vec::as_slice).unwrap_or_default();
            let positions = of_request.iter().map(|effect| (effect.position, request));
            keys.entry(&request.key).or_default().extend(positions);
        }
        for (key, mut turns) in keys {
            turns.sort_by_key(|(position, _)| *position);
            let positions: Vec<i64> = turns.iter().map(|(position, _)| *position).collect();
            if positions.iter().zip(1..).any(|(position, expected)| *position != expected) {
                return Err(BrokenCalls::SideBySide { key: key.to_owned(), positions });
            }
            let mut last: HashMap<&str, &Requested> = HashMap::new();
            for (_, request) in turns {
                let order = |request: &Requested| (request.maker_version, request.place);
                let before = last.insert(&request.maker, request);
                if let Some(later) = before.filter(|before| order(before) > order(request)) {
                    let (earlier, later) = (Box::new(request.clone()), Box::new(later.clone()));
                    return Err(BrokenCalls::OutOfTurn { key: key.to_owned(), earlier, later });
                }
            }
        }
        Ok(())
    }
}

/// A call has one effect, unless it was cancelled before or another call has served its request.
fn check_effects(
    request: &Requested,
    effects: &[&CallEffected],
    is_all_done: bool,
) -> Result<(), BrokenCalls> {
    let is_cancelled = request.state == RequestState::Cancelled;
    let request = || request.clone();
    if is_cancelled && request().manner != Manner::Cancellable {
        return Err(BrokenCalls::NotCancellable { request: request() });
    }
    match effects {
        [] => {
            let is_settled = match request().manner {
                Manner::Unique => request().state == RequestState::Served,
                _ => is_cancelled,
            };
            if is_settled || !is_all_done {
                return Ok(());
            }
            Err(BrokenCalls::Lost { request: request() })
        }
        [one] if one.found == RequestState::Cancelled => {
            Err(BrokenCalls::Cancelled { request: request() })
        }
        [_] => Ok(()),
        several => Err(BrokenCalls::Doubled { request: request(), times: several.len() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(account: &str, version: i64, calls: usize) -> Event {
        Event {
            id: format!("{account}{version}"),
            account: account.to_owned(),
            version,
            action: format!("action {account}{version}"),
            calls,
        }
    }

    fn request(id: &str, manner: Manner, maker: (&str, i64, i64)) -> Requested {
        Requested {
            id: id.to_owned(),
            manner,
            key: format!("{manner:?}"),
            maker: maker.0.to_owned(),
            maker_version: maker.1,
            place: maker.2,
            state: match manner {
                Manner::Unique => RequestState::Served,
                _ => RequestState::Open,
            },
        }
    }

    fn effect(request: &str, position: i64) -> CallEffected {
        CallEffected { request: request.to_owned(), position, found: RequestState::Open }
    }

    fn events() -> Vec<Event> {
        vec![event("a", 1, 4), event("a", 2, 3), event("b", 1, 2), event("b", 2, 0)]
    }

    /// Of two unique calls the first one has served both requests. Of two calls that were cancelled
    /// one had run before.
    fn sound() -> CallHistory {
        let mut requests = vec![
            request("plain", Manner::Plain, ("a", 1, 0)),
            request("turn 1", Manner::InTurn, ("a", 1, 1)),
            request("turn 2", Manner::InTurn, ("a", 1, 2)),
            request("unique", Manner::Unique, ("a", 1, 3)),
            request("unique too", Manner::Unique, ("a", 2, 0)),
            request("turn 4", Manner::InTurn, ("a", 2, 1)),
            request("chained", Manner::Chained, ("a", 2, 2)),
            request("turn 3", Manner::InTurn, ("b", 1, 0)),
            request("cancelled", Manner::Cancellable, ("b", 1, 1)),
            request("next", Manner::Plain, ("chained", 0, 0)),
        ];
        requests[8].state = RequestState::Cancelled;
        let effects = vec![
            effect("turn 1", 1),
            effect("turn 2", 2),
            effect("turn 3", 3),
            effect("turn 4", 4),
            effect("chained", 0),
            effect("plain", 0),
            effect("next", 0),
            effect("unique", 0),
            effect("cancelled", 0),
        ];
        CallHistory { requests, effects }
    }

    fn broken_by(break_it: impl FnOnce(&mut CallHistory)) -> BrokenCalls {
        let mut history = sound();
        break_it(&mut history);
        history.check(&events(), true).unwrap_err()
    }

    impl CallHistory {
        fn of(&mut self, id: &str) -> &mut Requested {
            self.requests.iter_mut().find(|request| request.id == id).unwrap()
        }

        fn effect_of(&mut self, id: &str) -> &mut CallEffected {
            self.effects.iter_mut().find(|effect| effect.request == id).unwrap()
        }

        fn without_effect(&mut self, id: &str) {
            self.effects.retain(|effect| effect.request != id);
        }
    }

    fn of_sound(id: &str) -> Requested {
        sound().of(id).clone()
    }

    #[test]
    fn sound_calls_are_accepted() {
        sound().check(&events(), true).unwrap();
        CallHistory::default().check(&[], true).unwrap();
        let mut in_time = sound();
        in_time.without_effect("cancelled");
        in_time.check(&events(), true).unwrap();
        let counts = CallCounts {
            requests: 10,
            effects: 8,
            cancelled_in_time: 1,
            cancelled_too_late: 0,
            served_by_another: 1,
        };
        assert_eq!(in_time.counts(), counts);
    }

    #[test]
    fn a_doubled_effect_is_detected() {
        for id in ["plain", "unique", "turn 1", "cancelled"] {
            let broken = broken_by(|history| history.effects.push(effect(id, 5)));
            assert_eq!(broken, BrokenCalls::Doubled { request: of_sound(id), times: 2 });
        }
    }

    #[test]
    fn a_lost_effect_is_detected() {
        for id in ["plain", "next", "turn 4"] {
            let broken = broken_by(|history| history.without_effect(id));
            assert_eq!(broken, BrokenCalls::Lost { request: of_sound(id) });
        }
        // While something is left to be done, it may still come.
        let mut history = sound();
        history.without_effect("plain");
        history.check(&events(), false).unwrap();
    }

    #[test]
    fn a_unique_call_that_nobody_serves_is_detected() {
        let broken = broken_by(|history| history.of("unique too").state = RequestState::Open);
        let request = Requested { state: RequestState::Open, ..of_sound("unique too") };
        assert_eq!(broken, BrokenCalls::Lost { request });
    }

    #[test]
    fn an_effect_after_the_cancelling_is_detected() {
        let broken =
            broken_by(|history| history.effect_of("cancelled").found = RequestState::Cancelled);
        assert_eq!(broken, BrokenCalls::Cancelled { request: of_sound("cancelled") });
        let broken = broken_by(|history| history.of("plain").state = RequestState::Cancelled);
        let request = Requested { state: RequestState::Cancelled, ..of_sound("plain") };
        assert_eq!(broken, BrokenCalls::NotCancellable { request });
    }

    #[test]
    fn a_call_of_an_action_that_was_not_committed_is_detected() {
        let broken = broken_by(|history| history.effects.push(effect("nothing", 0)));
        assert_eq!(broken, BrokenCalls::Invented { request: "nothing".to_owned() });
        let orphan = request("orphan", Manner::Plain, ("b", 3, 0));
        let broken = broken_by(|history| history.requests.push(orphan.clone()));
        assert_eq!(broken, BrokenCalls::Orphaned { request: orphan });
    }

    #[test]
    fn a_commit_with_other_calls_than_it_enqueued_is_detected() {
        let torn = |maker: &str, version, wanted, stored| BrokenCalls::Torn {
            maker: maker.to_owned(),
            version,
            wanted,
            stored,
        };
        let broken = broken_by(|history| {
            history.requests.remove(0);
            history.without_effect("plain");
        });
        assert_eq!(broken, torn("a", 1, 4, 3));
        let more = request("more", Manner::Plain, ("b", 2, 0));
        assert_eq!(broken_by(|history| history.requests.push(more)), torn("b", 2, 0, 1));
        // A call that ran enqueued another one.
        let broken = broken_by(|history| {
            history.requests.pop();
            history.without_effect("next");
        });
        assert_eq!(broken, torn("chained", 0, 1, 0));
        let broken = broken_by(|history| history.without_effect("chained"));
        assert_eq!(broken, torn("chained", 0, 0, 1));
    }

    #[test]
    fn calls_in_turn_that_ran_side_by_side_are_detected() {
        let broken = broken_by(|history| history.effect_of("turn 3").position = 2);
        let positions = vec![1, 2, 2, 4];
        assert_eq!(broken, BrokenCalls::SideBySide { key: "InTurn".to_owned(), positions });
    }

    #[test]
    fn calls_that_ran_out_of_turn_are_detected() {
        for (earlier, later) in [("turn 1", "turn 2"), ("turn 2", "turn 4")] {
            let broken = broken_by(|history| {
                let positions = [earlier, later].map(|id| history.effect_of(id).position);
                history.effect_of(earlier).position = positions[1];
                history.effect_of(later).position = positions[0];
            });
            let key = "InTurn".to_owned();
            let (earlier, later) = (Box::new(of_sound(earlier)), Box::new(of_sound(later)));
            assert_eq!(broken, BrokenCalls::OutOfTurn { key, earlier, later });
        }
        // The commits of two accounts have no order.
        let mut history = sound();
        history.effect_of("turn 3").position = 4;
        history.effect_of("turn 4").position = 3;
        history.check(&events(), true).unwrap();
    }
}
