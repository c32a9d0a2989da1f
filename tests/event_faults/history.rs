//! A history of what was committed and the effects of handlers, calls and jobs, and whether correct
//! nodes can have produced it.
//!
//! Invariant: the check uses no server and no clock. A run of an ordered handler notes which effect
//! it found before, so the effects themselves say in which order they were made.

pub mod calls;
pub mod jobs;

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use calls::{BrokenCalls, CallHistory};
use jobs::{BrokenJob, JobHistory};

/// An event that is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub id: String,
    pub account: String,
    /// The version of the account that emitted it.
    pub version: i64,
    pub action: String,
    /// How many calls its commit enqueued.
    pub calls: usize,
}

/// What a handler committed for an event.
#[derive(Debug, Clone, PartialEq)]
pub struct Effect {
    pub handler: String,
    pub event: String,
    /// The greatest earlier version of the account whose effect the run had found; 0 for none.
    pub after: i64,
}

/// The answer that a caller received.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    Committed,
    NotCommitted,
    Unknown,
}

/// A handler of all events.
#[derive(Debug, Clone, PartialEq)]
pub struct Handler {
    pub name: &'static str,
    pub is_ordered: bool,
}

#[derive(Debug, Clone, Default)]
pub struct History {
    pub handlers: Vec<Handler>,
    pub events: Vec<Event>,
    pub effects: Vec<Effect>,
    pub calls: CallHistory,
    pub jobs: Vec<JobHistory>,
    /// By account, the version that is stored.
    pub versions: BTreeMap<String, i64>,
    /// By action, what its caller was told.
    pub answers: Vec<(String, Answer)>,
    /// What is still to be handled at the end.
    pub left: Vec<String>,
}

/// Why correct nodes cannot have produced a history.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Broken {
    #[error("`{handler}`: the event {event:?} has {times} effects")]
    Doubled { handler: &'static str, event: Event, times: usize },
    #[error("`{handler}`: the event {event:?} is done and has no effect")]
    Lost { handler: &'static str, event: Event },
    #[error(
        "`{handler}`: the run of {event:?} found the effect of version {after}, not of {before}"
    )]
    Overtaken { handler: &'static str, event: Event, before: i64, after: i64 },
    #[error("`{handler}`: an effect of {event}, which is not stored")]
    Invented { handler: String, event: String },
    #[error(
        "{account}: version {version} is stored, and the versions of its events are {events:?}"
    )]
    Versions { account: String, version: i64, events: Vec<i64> },
    #[error("{action} was answered {received:?}, and has {events} events")]
    WrongAnswer { action: String, received: Answer, events: usize },
    #[error("{0}")]
    Calls(Box<BrokenCalls>),
    #[error("the job `{job}`: {broken}")]
    Job { job: &'static str, broken: Box<BrokenJob> },
    #[error("still to be handled: {0:#?}")]
    LeftBehind(Vec<String>),
}

impl History {
    /// The first error, if there is one.
    pub fn check(&self) -> Result<(), Broken> {
        self.check_commits()?;
        self.check_answers()?;
        // What is still to be handled is not lost, and may not have an effect yet.
        let is_all_done = self.left.is_empty();
        self.check_effects(is_all_done)?;
        let calls = self.calls.check(&self.events, is_all_done);
        calls.map_err(|broken| Broken::Calls(Box::new(broken)))?;
        for history in &self.jobs {
            let job = history.job.name;
            let broken = |broken| Broken::Job { job, broken: Box::new(broken) };
            history.check().map_err(broken)?;
        }
        if is_all_done { Ok(()) } else { Err(Broken::LeftBehind(self.left.clone())) }
    }

    /// Each version of an account has one event.
    fn check_commits(&self) -> Result<(), Broken> {
        for (account, events) in self.by_account() {
            let version = self.versions.get(account).copied().unwrap_or_default();
            let events: Vec<i64> = events.iter().map(|event| event.version).collect();
            if events != (1..=version).collect::<Vec<i64>>() {
                return Err(Broken::Versions { account: account.to_owned(), version, events });
            }
        }
        Ok(())
    }

    fn check_answers(&self) -> Result<(), Broken> {
        let mut stored: HashMap<&str, usize> = HashMap::new();
        for event in &self.events {
            *stored.entry(&event.action).or_default() += 1;
        }
        for (action, received) in &self.answers {
            let events = stored.get(&**action).copied().unwrap_or_default();
            let is_right = match received {
                Answer::Committed => events == 1,
                Answer::NotCommitted => events == 0,
                Answer::Unknown => events <= 1,
            };
            if !is_right {
                let (action, received) = (action.clone(), *received);
                return Err(Broken::WrongAnswer { action, received, events });
            }
        }
        Ok(())
    }

    /// Each event has one effect of each handler, and ordered handlers had theirs in the order of
    /// the versions.
    fn check_effects(&self, is_all_done: bool) -> Result<(), Broken> {
        let stored: HashSet<&str> = self.events.iter().map(|event| &*event.id).collect();
        let mut effects: HashMap<(&str, &str), Vec<&Effect>> = HashMap::new();
        for effect in &self.effects {
            if !stored.contains(&*effect.event) {
                let (handler, event) = (effect.handler.clone(), effect.event.clone());
                return Err(Broken::Invented { handler, event });
            }
            effects.entry((&effect.handler, &effect.event)).or_default().push(effect);
        }
        for handler in &self.handlers {
            for events in self.by_account().into_values() {
                let mut before = 0;
                for event in events {
                    let of_event = effects.get(&(handler.name, &*event.id));
                    let of_event = of_event.map(Vec::as_slice).unwrap_or_default();
                    let named = || (handler.name, event.clone());
                    match of_event {
                        [] if is_all_done => {
                            let (handler, event) = named();
                            return Err(Broken::Lost { handler, event });
                        }
                        [] => {}
                        [one] if handler.is_ordered && one.after != before => {
                            let (handler, event) = named();
                            let after = one.after;
                            return Err(Broken::Overtaken { handler, event, before, after });
                        }
                        [_] => {}
                        several => {
                            let ((handler, event), times) = (named(), several.len());
                            return Err(Broken::Doubled { handler, event, times });
                        }
                    }
                    before = event.version;
                }
            }
        }
        Ok(())
    }

    /// The events of each account, in the order of its versions.
    fn by_account(&self) -> BTreeMap<&str, Vec<&Event>> {
        let mut accounts: BTreeMap<&str, Vec<&Event>> =
            self.versions.keys().map(|account| (&**account, Vec::new())).collect();
        for event in &self.events {
            accounts.entry(&event.account).or_default().push(event);
        }
        for events in accounts.values_mut() {
            events.sort_by_key(|event| event.version);
        }
        accounts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(account: &str, version: i64) -> Event {
        Event {
            id: format!("{account}{version}"),
            account: account.to_owned(),
            version,
            action: format!("action {account}{version}"),
            calls: 0,
        }
    }

    fn effect(handler: &Handler, account: &str, version: i64, after: i64) -> Effect {
        Effect { handler: handler.name.to_owned(), event: format!("{account}{version}"), after }
    }

    const ORDERED: Handler = Handler { name: "ordered", is_ordered: true };
    const UNORDERED: Handler = Handler { name: "unordered", is_ordered: false };

    /// Two accounts. The unordered handler began with the last event of one of them.
    fn sound() -> History {
        History {
            handlers: vec![ORDERED, UNORDERED],
            events: vec![event("a", 2), event("a", 1), event("b", 1), event("a", 3)],
            effects: vec![
                effect(&UNORDERED, "a", 3, 0),
                effect(&ORDERED, "a", 1, 0),
                effect(&ORDERED, "b", 1, 0),
                effect(&ORDERED, "a", 2, 1),
                effect(&UNORDERED, "a", 2, 0),
                effect(&UNORDERED, "a", 1, 0),
                effect(&ORDERED, "a", 3, 2),
                effect(&UNORDERED, "b", 1, 0),
            ],
            calls: CallHistory::default(),
            jobs: Vec::new(),
            versions: [("a".to_owned(), 3), ("b".to_owned(), 1)].into(),
            answers: vec![
                ("action a1".to_owned(), Answer::Committed),
                ("action a2".to_owned(), Answer::Unknown),
                ("action a9".to_owned(), Answer::Unknown),
                ("action a8".to_owned(), Answer::NotCommitted),
            ],
            left: Vec::new(),
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
    fn a_doubled_effect_is_detected() {
        for (doubled, handler) in [(6, "ordered"), (0, "unordered")] {
            let broken = broken_by(|history| {
                let again = history.effects[doubled].clone();
                history.effects.push(again);
            });
            let event = event("a", 3);
            assert_eq!(broken, Broken::Doubled { handler, event, times: 2 });
        }
    }

    #[test]
    fn a_lost_effect_is_detected() {
        let broken = broken_by(|history| drop(history.effects.remove(2)));
        let event = event("b", 1);
        assert_eq!(broken, Broken::Lost { handler: "ordered", event });
    }

    #[test]
    fn an_overtaken_event_is_detected() {
        // The third one was run before the second one had its effect.
        let broken = broken_by(|history| history.effects[6].after = 1);
        let (handler, event) = ("ordered", event("a", 3));
        assert_eq!(broken, Broken::Overtaken { handler, event, before: 2, after: 1 });
        // The first one was not there when the second one was run.
        let broken = broken_by(|history| history.effects[3].after = 0);
        let (handler, event) = ("ordered", self::event("a", 2));
        assert_eq!(broken, Broken::Overtaken { handler, event, before: 1, after: 0 });
    }

    #[test]
    fn an_effect_without_an_event_is_detected() {
        let broken = broken_by(|history| history.effects[0].event = "a4".to_owned());
        let (handler, event) = ("unordered".to_owned(), "a4".to_owned());
        assert_eq!(broken, Broken::Invented { handler, event });
    }

    #[test]
    fn a_version_without_an_event_is_detected() {
        let broken = broken_by(|history| *history.versions.get_mut("b").unwrap() = 2);
        assert_eq!(
            broken,
            Broken::Versions { account: "b".to_owned(), version: 2, events: vec![1] }
        );
        let broken = broken_by(|history| history.events.push(event("b", 1)));
        let events = vec![1, 1];
        assert_eq!(broken, Broken::Versions { account: "b".to_owned(), version: 1, events });
    }

    #[test]
    fn a_wrong_answer_is_detected() {
        for (action, received, events) in
            [("action a9", Answer::Committed, 0), ("action a2", Answer::NotCommitted, 1)]
        {
            let action = action.to_owned();
            let broken = broken_by(|history| history.answers.push((action.clone(), received)));
            assert_eq!(broken, Broken::WrongAnswer { action, received, events });
        }
    }

    #[test]
    fn an_event_that_is_never_handled_is_detected() {
        let broken = broken_by(|history| {
            history.effects.remove(2);
            history.left.push("a row".to_owned());
        });
        assert_eq!(broken, Broken::LeftBehind(vec!["a row".to_owned()]));
        // What is wrong already is named first.
        let broken = broken_by(|history| {
            history.effects[6].after = 1;
            history.left.push("a row".to_owned());
        });
        assert!(matches!(broken, Broken::Overtaken { .. }), "{broken}");
    }
}
