//! A state of the model: the row of the key at the server, the callers, the network, the fence.
//!
//! Invariants: time is counted as what is left of each term. Tokens and acquisitions are numbered by their order alone, and numbers that nothing
//! names are forgotten. So a model that runs for ever has few states.

use super::message::{Message, Owner, OwnerSet};
use super::settings::{PROCESS_OF, Settings, Variant};

/// A term that no clock ends.
const FOR_EVER: u8 = u8::MAX;

/// What the server knows about the key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub(super) owner: Option<Owner>,
    pub(super) token: u8,
    /// The rest of the owner's term.
    pub(super) left: u8,
    /// For how long the owner has had the key without having been heard of.
    pub(super) unconfirmed: Option<u8>,
    /// The registered waiters, the first one first.
    pub(super) waiters: Vec<Owner>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Caller {
    /// The number of its acquisition.
    pub(super) round: u8,
    pub(super) phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Idle,
    Waiting,
    Holding {
        token: u8,
        /// The rest of the term, as the caller counts it.
        left: u8,
        confirmed: bool,
        work: Work,
    },
}

/// What a holder has done in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Work {
    Nothing,
    /// It has read; `fresh` while nobody has committed since.
    Read {
        fresh: bool,
    },
    /// Its commit is on its way, or done.
    Sent,
}

/// A rule that a state breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Broken {
    /// Two holders committed on top of the same read.
    BothCommitted,
    /// Two holders are within their terms, and nobody forced either of them out.
    TwoHolders,
    /// A grant has the token of an earlier grant, or a smaller one.
    TokenNotGreater,
    /// A waiter is registered at a key that nobody has, so that nobody will hand it over.
    WaitsAtAFreeKey,
    /// A grant outlasts the confirm term although its owner has not been heard of.
    UnconfirmedForTooLong,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub(super) row: Row,
    pub(super) callers: Vec<Caller>,
    /// Sorted, because messages overtake each other.
    pub(super) messages: Vec<Message>,
    /// The grant that an operator saw and is about to end.
    pub(super) seen: Option<(Owner, u8)>,
    /// The tokens whose holders were forced out, one bit for each.
    pub(super) forced: u32,
    /// The greatest token under which somebody has read.
    pub(super) fence: u8,
    /// The greatest token that was granted.
    pub(super) greatest: u8,
    /// A rule that the last step broke.
    pub(super) broken: Option<Broken>,
}

impl World {
    pub(super) fn new(callers: usize) -> Self {
        Self {
            row: Row { owner: None, token: 0, left: 0, unconfirmed: None, waiters: Vec::new() },
            callers: vec![Caller { round: 0, phase: Phase::Idle }; callers],
            messages: Vec::new(),
            seen: None,
            forced: 0,
            fence: 0,
            greatest: 0,
            broken: None,
        }
    }

    pub(super) fn broken(&self, settings: &Settings) -> Option<Broken> {
        if self.broken.is_some() {
            return self.broken;
        }
        let within_its_term = |caller: &&Caller| match caller.phase {
            Phase::Holding { token, left, .. } => left > 0 && self.forced & (1 << token) == 0,
            _ => false,
        };
        if self.callers.iter().filter(within_its_term).count() > 1 {
            return Some(Broken::TwoHolders);
        }
        let nobody_hands_over = self.row.owner.is_none() && !self.row.waiters.is_empty();
        if nobody_hands_over && !settings.may_wait_at_free_keys {
            return Some(Broken::WaitsAtAFreeKey);
        }
        let late = |age: u8| age >= settings.confirm && self.row.left > 0;
        self.row.unconfirmed.is_some_and(late).then_some(Broken::UnconfirmedForTooLong)
    }

    pub(super) fn owner(&self, caller: u8) -> Owner {
        Owner { caller, round: self.callers[usize::from(caller)].round }
    }

    /// The caller whose present acquisition this is.
    pub(super) fn caller_of(&mut self, owner: Owner) -> Option<&mut Caller> {
        self.callers.get_mut(usize::from(owner.caller)).filter(|caller| caller.round == owner.round)
    }

    pub(super) fn send(&mut self, message: Message) {
        self.messages.push(message);
    }

    pub(super) fn is_on_its_way(&self, message: impl Fn(&Message) -> bool) -> bool {
        self.messages.iter().any(message)
    }

    /// Ends the acquisition of a caller.
    pub(super) fn leave(&mut self, caller: u8) {
        let caller = &mut self.callers[usize::from(caller)];
        caller.round += 1;
        caller.phase = Phase::Idle;
    }

    pub(super) fn crash(&mut self, process: u8) {
        for (caller, _) in (0..).zip(PROCESS_OF).filter(|(_, of)| *of == process) {
            let is_busy = |caller: &Caller| caller.phase != Phase::Idle;
            if self.callers.get(usize::from(caller)).is_some_and(is_busy) {
                self.leave(caller);
            }
        }
    }

    /// Nobody has a message on its way, or still has to send one.
    pub(super) fn is_quiet(&self) -> bool {
        let unheard =
            |caller: &Caller| matches!(caller.phase, Phase::Holding { confirmed: false, .. });
        self.messages.is_empty() && !self.callers.iter().any(unheard)
    }

    /// The clock goes on by one tick for everybody.
    pub(super) fn tick(&mut self) {
        let count = |left: &mut u8| {
            if *left != FOR_EVER {
                *left = left.saturating_sub(1);
            }
        };
        if let Some(age) = &mut self.row.unconfirmed
            && self.row.left > 0
            && self.row.left != FOR_EVER
        {
            *age += 1;
        }
        count(&mut self.row.left);
        for caller in &mut self.callers {
            if let Phase::Holding { left, .. } = &mut caller.phase {
                count(left);
            }
        }
        self.messages.iter_mut().filter_map(Message::ends_mut).for_each(count);
    }

    /// Somebody's commit is there: what others read before is old.
    pub(super) fn committed(&mut self) {
        for caller in &mut self.callers {
            if let Phase::Holding { work: Work::Read { fresh }, .. } = &mut caller.phase {
                *fresh = false;
            }
        }
        for message in &mut self.messages {
            if let Message::Commit { fresh, .. } = message {
                *fresh = false;
            }
        }
    }

    /// Forgets what can have no effect any more, and numbers tokens and acquisitions anew, in
    /// their order.
    pub(super) fn normalize(&mut self, settings: &Settings) {
        if self.row.left == 0 {
            self.row.unconfirmed = None;
        }
        self.forget(settings);
        self.number_tokens();
        self.number_acquisitions();
        self.messages.sort_unstable();
    }

    /// Drops the messages that change nothing whenever they arrive. An acquisition that is over
    /// does not come back, and neither does a token.
    fn forget(&mut self, settings: &Settings) {
        let Self { row, callers, messages, fence, .. } = self;
        let is_over = |owner: Owner| callers[usize::from(owner.caller)].round != owner.round;
        let waits = |owner: Owner| callers[usize::from(owner.caller)].phase == Phase::Waiting;
        let mut asking = OwnerSet::default();
        for message in messages.iter() {
            if let Message::Ask { owner, .. }
            | Message::Busy { owner }
            | Message::Register { owner } = message
            {
                asking.add(*owner);
            }
        }
        messages.retain(|message| match *message {
            Message::Ask { .. } | Message::Register { .. } => true,
            Message::Busy { owner } | Message::Extended { owner, .. } => !is_over(owner),
            Message::Granted { owner, ends, .. } => {
                let in_time = ends > 0 || settings.variant == Variant::TermFromArrival;
                !is_over(owner) && waits(owner) && in_time
            }
            Message::Extend { owner, token, .. } => {
                !is_over(owner) || (row.owner == Some(owner) && row.token == token && row.left > 0)
            }
            Message::Release { owner } => {
                row.owner == Some(owner)
                    || row.waiters.contains(&owner)
                    || asking.has(owner)
                    || settings.variant == Variant::ReleasesWhatStands
            }
            Message::Commit { token, .. } => {
                token >= *fence || settings.variant == Variant::WithoutFence
            }
        });
        if let Some((owner, token)) = self.seen
            && (row.owner != Some(owner) || row.token != token || row.left == 0)
            && settings.variant != Variant::ForceEndsWhatStands
        {
            self.seen = None;
        }
    }

    fn number_tokens(&mut self) {
        let mut named = 1_u32 << self.row.token | 1 << self.fence | 1 << self.greatest;
        named |= self.seen.map_or(0, |(_, token)| 1 << token);
        for caller in &self.callers {
            if let Phase::Holding { token, .. } = caller.phase {
                named |= 1 << token;
            }
        }
        for message in &mut self.messages {
            named |= message.token_mut().map_or(0, |token| 1 << *token);
        }
        let rank = |token: u8| (named & ((1 << token) - 1)).count_ones() as u8;
        let rename = |token: &mut u8| *token = rank(*token);
        let was_forced = |token: &u8| self.forced & named & (1 << *token) != 0;
        self.forced = (0..31).filter(was_forced).map(|token| 1 << rank(token)).sum();
        [&mut self.row.token, &mut self.fence, &mut self.greatest].into_iter().for_each(rename);
        if let Some((_, token)) = &mut self.seen {
            rename(token);
        }
        for caller in &mut self.callers {
            if let Phase::Holding { token, .. } = &mut caller.phase {
                rename(token);
            }
        }
        self.messages.iter_mut().filter_map(Message::token_mut).for_each(rename);
    }

    fn number_acquisitions(&mut self) {
        let mut named = OwnerSet::default();
        self.row.waiters.iter().for_each(|owner| named.add(*owner));
        self.row.owner.iter().for_each(|owner| named.add(*owner));
        self.seen.iter().for_each(|(owner, _)| named.add(*owner));
        self.messages.iter().filter_map(Message::owner).for_each(|owner| named.add(owner));
        for caller in 0..self.callers.len() as u8 {
            named.add(self.owner(caller));
        }
        let rename = |owner: &mut Owner| owner.round = named.before(*owner);
        self.row.waiters.iter_mut().for_each(rename);
        self.row.owner.iter_mut().for_each(rename);
        self.seen.iter_mut().for_each(|(owner, _)| rename(owner));
        self.messages.iter_mut().filter_map(Message::owner_mut).for_each(rename);
        for caller in 0..self.callers.len() as u8 {
            let round = named.before(self.owner(caller));
            self.callers[usize::from(caller)].round = round;
        }
    }

    /// The correct hand-over, or one with a defect: the first registered waiter becomes the
    /// owner. `asks` is a waiter that asks at this moment, with the end of its term.
    pub(super) fn hand_over(&mut self, settings: &Settings, asks: Option<(Owner, u8)>) {
        let row = &mut self.row;
        row.unconfirmed = None;
        if row.waiters.is_empty() {
            (row.owner, row.left) = (None, 0);
            return;
        }
        let owner = row.waiters.remove(0);
        row.owner = Some(owner);
        if settings.variant != Variant::KeepsTheToken {
            row.token += 1;
        }
        if row.token <= self.greatest {
            self.broken = Some(Broken::TokenNotGreater);
        }
        self.greatest = self.greatest.max(row.token);
        let token = row.token;
        if let Some((_, ends)) = asks.filter(|(asker, _)| *asker == owner) {
            row.left = settings.term;
            self.send(Message::Granted { owner, token, ends, confirmed: true });
            return;
        }
        row.left = match settings.variant {
            Variant::HandsOverForEver => FOR_EVER,
            Variant::HandsOverAWholeTerm => settings.term,
            _ => settings.confirm,
        };
        row.unconfirmed = Some(0);
        let ends = row.left.min(settings.term);
        self.send(Message::Granted { owner, token, ends, confirmed: false });
    }
}
