//! When a node looks for deliveries on a shard, and what it remembers from one look to the next.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ekbatan_core::__private::deliveries::LONGEST_RUN;
use futures_util::future::BoxFuture;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use crate::claims::candidates::Room;
use crate::claims::claimed::{Claimed, StreamKey};
use crate::claims::elsewhere::Elsewhere;
use crate::claims::held_sizes::HeldSizes;
use crate::claims::look_from::LookFrom;
use crate::claims::poll::Polled;
use crate::claims::round_writes::WriteTerms;
use crate::claims::streams::Streams;
use crate::claims::unheld::Unheld;
use crate::error::EventsError;

/// How often rows are checked that nobody would find otherwise.
const CHECKS: Duration = Duration::from_secs(5);

/// The pause after a round that failed or left rows as they were, at most. No notification tells of such rows.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// How long rounds stay so frequent after the last such round. A write that was given up may still run at the
/// server.
const SECOND_LOOKS: Duration = Duration::from_secs(60);

/// A node that holds so many deliveries of a stream claims no more of it.
const ENOUGH: usize = LONGEST_RUN / 2;

/// A round that follows failed ones claims and sweeps at least this part of what others do.
const MOST_PARTS: usize = 64;

/// How many rounds in a row begin at once because the one before left streams alone.
const MOST_UNCOVERING: u32 = 16;

/// When a worker looks for deliveries.
pub(crate) struct Rounds {
    pub(crate) under_way: Option<Polling>,
    pub(crate) next: Instant,
    /// Whether the next round begins at once, whatever the one that is under way claims.
    is_next_at_once: bool,
    /// How many rounds in a row have begun at once because the one before left streams alone.
    uncovering: u32,
    /// The pause after a round that finds nothing.
    pub(crate) pause: Duration,
    pub(crate) checked: Option<Instant>,
    /// Until when rounds look at what was left: by a round that failed or met a locked row, or by a release.
    looks_again_until: Option<Instant>,
    /// What the last check has found.
    pub(crate) unheld: Unheld,
    /// Where the last look has found the oldest deliveries. A round that fails forgets it.
    pub(crate) look_from: LookFrom,
    elsewhere: Elsewhere,
    /// The streams that the last round has passed over because the node held enough of them.
    held_enough: HashSet<StreamKey>,
    pub(crate) held_sizes: HeldSizes,
    /// How the writes of the next round are made.
    pub(crate) terms: WriteTerms,
    /// By what the number of deliveries is divided that a round claims, and of events that it sweeps, because
    /// rounds have failed: what they read or write may take longer than a round may.
    pub(crate) divisor: usize,
    /// By handler, how many deliveries the round may claim.
    pub(crate) room: HashMap<&'static str, Room>,
    /// The streams in which a run has failed since the round began. The deliveries that the round
    /// claimed there come after the failed one, so they must not start.
    pub(crate) failed_meanwhile: HashSet<StreamKey>,
    /// The relays that were closed since the round began; they may be open again. The deliveries that
    /// the round claimed for them may come after some that were given back, so they must not start.
    pub(crate) closed_meanwhile: HashSet<&'static str>,
}

impl Rounds {
    pub(crate) fn new(pause: Duration) -> Self {
        Self {
            under_way: None,
            next: Instant::now(),
            is_next_at_once: false,
            uncovering: 0,
            pause,
            checked: None,
            looks_again_until: None,
            unheld: Unheld::default(),
            look_from: LookFrom::default(),
            elsewhere: Elsewhere::default(),
            held_enough: HashSet::new(),
            held_sizes: HeldSizes::default(),
            terms: WriteTerms::default(),
            divisor: 1,
            room: HashMap::new(),
            failed_meanwhile: HashSet::new(),
            closed_meanwhile: HashSet::new(),
        }
    }

    /// Begins a round. Answers whether it checks rows that nobody would find otherwise.
    pub(crate) fn begin(&mut self) -> bool {
        let pause = if self.looks_again() { SECOND_LOOK } else { CHECKS };
        let checks = self.checked.is_none_or(|last| last.elapsed() >= pause);
        if checks {
            self.checked = Some(Instant::now());
        }
        self.is_next_at_once = false;
        self.failed_meanwhile.clear();
        self.closed_meanwhile.clear();
        checks
    }

    /// Waits for the end of the round that is under way, or for ever.
    pub(crate) async fn ended(&mut self) -> Result<Polled, EventsError> {
        match &mut self.under_way {
            Some(Polling(task)) => match task.join_next().await {
                Some(Ok(polled)) => polled,
                Some(Err(error)) => Err(unavailable(error.to_string())),
                None => Err(unavailable("the round has ended".to_owned())),
            },
            None => std::future::pending().await,
        }
    }

    /// Remembers what a round has found out. Returns what it claimed, and whether the next one may
    /// find something at once.
    pub(crate) fn note(&mut self, polled: Polled) -> (Vec<Claimed>, bool) {
        let Polled { claimed, elsewhere, is_busy, left_rows, terms, unheld, look_from } = polled;
        (self.unheld, self.look_from, self.terms) = (unheld, look_from, terms);
        if left_rows {
            self.look_again();
        }
        self.divisor = (self.divisor / 2).max(1);
        self.leave(elsewhere);
        (claimed, is_busy)
    }

    /// Lets rounds skip streams for a while. They may have hidden others, which the next round finds.
    fn leave(&mut self, elsewhere: HashSet<StreamKey>) {
        let now = Instant::now();
        let left = elsewhere.into_iter().filter(|stream| self.elsewhere.leave(*stream, now));
        // There may be so many that the first of them are looked at again before the last ones are left.
        if left.count() > 0 && self.uncovering < MOST_UNCOVERING {
            (self.uncovering, self.is_next_at_once) = (self.uncovering + 1, true);
        } else {
            self.uncovering = 0;
        }
    }

    /// Lets rounds skip a stream for a while, because this process does not want its next event.
    pub(crate) fn pass_over(&mut self, stream: StreamKey, length: Duration) {
        self.elsewhere.leave_for(stream, Instant::now(), length);
    }

    /// Lets the next rounds do less, because one has failed.
    pub(crate) fn note_failure(&mut self) {
        self.look_again();
        self.divisor = (self.divisor * 2).min(MOST_PARTS);
    }

    /// Lets the next round begin at once, or after a pause that is longer each time, and soon if one has left
    /// something lately.
    pub(crate) fn end(&mut self, is_busy: bool, shortest: Duration, longest: Duration) {
        self.pause = if is_busy { shortest } else { (self.pause * 2).min(longest) };
        let is_early = is_busy || self.is_next_at_once;
        let mut pause = if is_early { Duration::ZERO } else { self.pause };
        if self.looks_again() {
            pause = pause.min(SECOND_LOOK);
        }
        self.next = Instant::now() + pause;
    }

    /// Lets rounds look soon at what was left, also if they are rare.
    pub(crate) fn look_again(&mut self) {
        let now = Instant::now();
        self.looks_again_until = Some(now + SECOND_LOOKS);
        self.next = self.next.min(now + SECOND_LOOK);
    }

    fn looks_again(&self) -> bool {
        let looks_again = self.looks_again_until.is_some_and(|until| Instant::now() < until);
        // What the node did not hold at the last check, the next one may release.
        looks_again || self.unheld.has_any()
    }

    /// By handler, the models whose streams a round skips, because the node holds enough of them or
    /// another node handles them. Their deliveries would hide those of other models.
    pub(crate) fn passed_over(&mut self, streams: &Streams) -> HashMap<&'static str, Vec<Uuid>> {
        let mut passed_over: HashMap<&'static str, Vec<Uuid>> = HashMap::new();
        let now = Instant::now();
        self.held_enough = streams.of_at_least(ENOUGH).collect();
        let enough = self.held_enough.iter().copied();
        for (handler, model) in enough.chain(self.elsewhere.at(now)) {
            passed_over.entry(handler).or_default().push(model);
        }
        passed_over
    }

    /// Lets the next round begin at once if the last one has passed over this stream, and the node does
    /// not hold enough of it any more. What it may have left there, nobody else looks for.
    pub(crate) fn has_less(&mut self, streams: &Streams, stream: StreamKey) {
        if streams.of_stream(stream) < ENOUGH && self.held_enough.remove(&stream) {
            self.next = Instant::now();
            self.is_next_at_once = true;
        }
    }

    /// Lets the next round begin soon.
    pub(crate) fn hurry(&mut self, pause: Duration) {
        self.pause = pause;
        self.next = self.next.min(Instant::now() + pause);
    }

    /// Lets the next round begin at once, or after the one that is under way.
    pub(crate) fn hear(&mut self, pause: Duration) {
        (self.pause, self.next, self.is_next_at_once) = (pause, Instant::now(), true);
    }
}

/// A round that is under way, in a task of its own: it may hold a transaction, for whose end a
/// write of the worker waits. It ends when this is dropped.
pub(crate) struct Polling(JoinSet<Result<Polled, EventsError>>);

impl Polling {
    pub(crate) fn start(poll: BoxFuture<'static, Result<Polled, EventsError>>) -> Self {
        let mut task = JoinSet::new();
        task.spawn(poll);
        Self(task)
    }
}

pub(crate) fn unavailable(why: String) -> EventsError {
    let kind = ekbatan_core::db::DbErrorKind::Unavailable;
    EventsError::Database(ekbatan_core::db::DbError::new(kind, why))
}
