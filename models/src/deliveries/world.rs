//! A state of the model: the events and their deliveries in the database, and the nodes.
//!
//! Invariant: of a delivery's versions only this counts, whether a node's copy is still the
//! present one. So a model in which deliveries are claimed and released for ever has few states.

use super::settings::{EVENTS, NODES, Settings};

/// An event and its delivery in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// Its version is not committed.
    Future,
    /// It has no delivery yet.
    Unswept,
    /// Its delivery waits for a node.
    Open,
    /// A node has claimed its delivery.
    Claimed(Owner),
    /// The effect is there, and the delivery is gone.
    Handled,
}

/// Who has claimed a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// A node under its present identity.
    Node(u8),
    /// A node that crashed and whose row is still there.
    Dead(u8),
    /// A node without a row, under an identity that it has given up.
    Gone,
}

/// A node's copy of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Copy {
    pub(super) event: u8,
    /// Whether nobody has changed the delivery since.
    pub(super) fresh: bool,
}

/// A process that commits versions and handles events.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Node {
    /// Whether its row is there.
    pub(super) registered: bool,
    /// What it has claimed, in order. The handler of the first one runs.
    pub(super) held: Vec<Copy>,
    /// A handler that runs since an earlier identity.
    pub(super) stray: Option<Copy>,
    /// All events of so many versions are handled, or held by this node.
    pub(super) known: Option<u8>,
    /// Its commit that is under way, with a delivery that it claims.
    pub(super) staged: Option<Staged>,
    pub(super) round: Round,
    /// Whether a handler has failed since the round began.
    pub(super) failed_meanwhile: bool,
}

/// The commit of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Staged {
    pub(super) event: u8,
    /// Who has claimed the delivery.
    pub(super) owner: Owner,
    pub(super) landed: bool,
    /// Whether nobody has changed the delivery since.
    pub(super) fresh: bool,
}

/// How far a node's round is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Round {
    Idle,
    /// It has read what was due.
    Read(Seen),
    /// And then it has swept.
    Swept(Seen),
    /// It claims these, each with the answer, if it is there.
    Claiming(Vec<(Copy, Option<bool>)>),
}

/// What a node has seen at the begin of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    /// The number of events up to the last one that was due.
    pub(super) due: u8,
    /// What it held, one bit for each event.
    pub(super) held: u8,
}

/// A rule that a state breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Broken {
    /// An event had its effect twice.
    TwoEffects,
    /// An event had its effect before an earlier one.
    Overtaken,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub(super) events: [Event; EVENTS],
    pub(super) nodes: [Node; NODES],
    /// The commit of a crashed process, on its way.
    pub(super) late: Option<Staged>,
    /// How often each of these may still happen.
    pub(super) foreign: u8,
    pub(super) crashes: u8,
    pub(super) suspicions: u8,
    pub(super) failures: u8,
    /// A rule that the last step broke.
    pub(super) broken: Option<Broken>,
}

impl Node {
    pub(super) fn new() -> Self {
        Self {
            registered: true,
            held: Vec::new(),
            stray: None,
            known: None,
            staged: None,
            round: Round::Idle,
            failed_meanwhile: false,
        }
    }

    pub(super) fn holds(&self) -> u8 {
        self.held.iter().map(|copy| 1 << copy.event).sum()
    }

    /// Every copy that it has of an event's delivery.
    fn copies(&mut self, event: u8) -> impl Iterator<Item = &mut bool> {
        let claims: &mut [_] = match &mut self.round {
            Round::Claiming(claims) => claims,
            _ => &mut [],
        };
        let of_claims = claims.iter_mut().map(|(copy, _)| copy);
        let copies = self.held.iter_mut().chain(&mut self.stray).chain(of_claims);
        let copies = copies.map(|copy| (copy.event, &mut copy.fresh));
        let staged = self.staged.iter_mut().map(|staged| (staged.event, &mut staged.fresh));
        copies.chain(staged).filter(move |(of, _)| *of == event).map(|(_, fresh)| fresh)
    }
}

impl World {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            events: [Event::Future; EVENTS],
            nodes: std::array::from_fn(|_| Node::new()),
            late: None,
            foreign: settings.foreign,
            crashes: settings.crashes,
            suspicions: settings.suspicions,
            failures: settings.failures,
            broken: None,
        }
    }

    pub(super) fn event(&self, event: u8) -> Event {
        self.events[usize::from(event)]
    }

    pub(super) fn node(&mut self, node: u8) -> &mut Node {
        &mut self.nodes[usize::from(node)]
    }

    /// The next version, if there is one more.
    pub(super) fn next(&self) -> Option<u8> {
        self.events.iter().position(|event| *event == Event::Future).map(|next| next as u8)
    }

    /// Changes a delivery: every copy of it is old.
    pub(super) fn change(&mut self, event: u8, to: Event) {
        self.events[usize::from(event)] = to;
        self.nodes.iter_mut().flat_map(|node| node.copies(event)).for_each(|fresh| *fresh = false);
    }

    /// Lets a delivery wait again, if it is as the copy says.
    pub(super) fn release(&mut self, copy: Copy) {
        if copy.fresh {
            self.change(copy.event, Event::Open);
        }
    }

    /// Forgets what can have no effect any more.
    pub(super) fn normalize(&mut self) {
        let next = self.next();
        let is_refused = |staged: &mut Staged| !staged.landed && Some(staged.event) != next;
        self.late.take_if(is_refused);
        for (n, node) in (0..).zip(&mut self.nodes) {
            let is_own = |event: &u8| {
                self.events[usize::from(*event)] == Event::Claimed(Owner::Node(n))
                    || node.held.iter().any(|copy| copy.event == *event)
            };
            node.staged.take_if(is_refused);
            node.staged.take_if(|staged| staged.landed && staged.owner != Owner::Node(n));
            if let Round::Read(seen) | Round::Swept(seen) = &mut node.round {
                seen.held &= (0..EVENTS as u8).filter(is_own).map(|event| 1 << event).sum::<u8>();
            }
            // What is known counts only where the next delivery, or the one that is awaited, rests
            // on it.
            let counts = |known: u8| {
                Some(known) == next || node.staged.is_some_and(|staged| staged.event == known)
            };
            node.known = node.known.filter(|known| counts(*known));
        }
    }

    /// The commit of a handler arrives. `false` if it is refused, because the delivery has changed.
    pub(super) fn commit_effect(&mut self, copy: Copy, guarded: bool) -> bool {
        if guarded && !copy.fresh {
            return false;
        }
        let earlier = &self.events[..usize::from(copy.event)];
        if self.event(copy.event) == Event::Handled {
            self.broken = Some(Broken::TwoEffects);
        } else if earlier.iter().any(|event| *event != Event::Handled) {
            self.broken = Some(Broken::Overtaken);
        }
        self.change(copy.event, Event::Handled);
        true
    }

    /// Whether the owner of a delivery has no row.
    pub(super) fn is_orphan(&self, event: u8) -> bool {
        match self.event(event) {
            Event::Claimed(Owner::Gone) => true,
            Event::Claimed(Owner::Node(node)) => !self.nodes[usize::from(node)].registered,
            _ => false,
        }
    }

    /// What a node has claimed under an identity belongs to another one, also what is on its way.
    pub(super) fn rename(&mut self, from: Owner, to: Owner) {
        for event in &mut self.events {
            if *event == Event::Claimed(from) {
                *event = Event::Claimed(to);
            }
        }
        let staged = self.nodes.iter_mut().filter_map(|node| node.staged.as_mut());
        for staged in staged.chain(&mut self.late) {
            if staged.owner == from {
                staged.owner = to;
            }
        }
    }
}
