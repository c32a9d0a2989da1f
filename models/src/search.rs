//! The search: visits every state that a machine can reach, breadth first, so that the way to a
//! broken state is a shortest one.
//!
//! Invariants: a state is visited once. The graph that the search leaves behind has every step
//! between the states that it visited, so that properties of endless runs can be checked on it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// Something that moves from state to state in steps.
pub trait Machine {
    /// Everything that the future depends on.
    type State: Clone + Eq + Hash;
    /// What leads from one state to the next.
    type Step: Copy + Eq + Hash + fmt::Display;
    /// A rule that a state breaks.
    type Broken: Eq + fmt::Debug;

    /// Where every run begins.
    fn start(&self) -> Self::State;

    /// Every step that is possible in `state`, with the state after it. Steps that change nothing
    /// are left out.
    fn steps(&self, state: &Self::State) -> Vec<(Self::Step, Self::State)>;

    /// The rule that `state` breaks, if it breaks one. No step is taken from such a state.
    fn broken(&self, state: &Self::State) -> Option<Self::Broken>;

    /// What endless runs must do about `step`, which is possible in `state`.
    fn fairness(&self, state: &Self::State, step: Self::Step) -> Fairness;

    /// The callers that wait in `state`, one bit for each.
    fn waiting(&self, state: &Self::State) -> u32;
}

/// What an endless run must do about a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fairness {
    /// It is a fault. Faults end at some time, so an endless run takes none.
    Fault,
    /// A run may take it or not.
    Choice,
    /// A run takes it, unless it becomes impossible in between.
    Weak,
    /// A run that makes it possible again and again takes it.
    Strong,
}

/// The steps from the start to a state, and for endless runs those that repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The steps from the start.
    pub steps: Vec<String>,
    /// Steps that a run can repeat for ever after that; empty if it stops there.
    pub repeats: Vec<String>,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, step) in self.steps.iter().enumerate() {
            writeln!(f, "{:3}. {step}", n + 1)?;
        }
        if !self.repeats.is_empty() {
            writeln!(f, "  then, for ever, among others:")?;
        }
        self.repeats.iter().try_for_each(|step| writeln!(f, "     {step}"))
    }
}

/// A step of the graph.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edge {
    /// An index into [`Explored::labels`].
    pub(crate) label: u32,
    pub(crate) to: u32,
    pub(crate) fairness: Fairness,
}

/// Every reachable state, or those up to the first that breaks a rule.
pub struct Explored<M: Machine> {
    /// The first broken rule, with a shortest way there.
    pub broken: Option<(M::Broken, Trace)>,
    pub(crate) labels: Vec<M::Step>,
    /// The edges of all states, one state after the other.
    pub(crate) edges: Vec<Edge>,
    /// Where the edges of each state begin, and one more.
    pub(crate) first_edge: Vec<u32>,
    /// The callers that wait in each state, one bit for each.
    pub(crate) waiting: Vec<u32>,
    /// The step by which each state was found, and the state before it.
    found_by: Vec<(u32, u32)>,
}

const NOWHERE: u32 = u32::MAX;

impl<M: Machine> Explored<M> {
    /// Visits every state that `machine` can reach. Stops at a state that breaks a rule.
    pub fn of(machine: &M) -> Self {
        let mut explored = Self {
            broken: None,
            labels: Vec::new(),
            edges: Vec::new(),
            first_edge: vec![0],
            waiting: Vec::new(),
            found_by: vec![(NOWHERE, NOWHERE)],
        };
        let start = machine.start();
        let mut states = vec![start.clone()];
        let mut numbers: HashMap<_, u32, Quick> = HashMap::from_iter([(start, 0)]);
        let mut label_numbers: HashMap<_, u32, Quick> = HashMap::default();
        let mut next = 0;
        while next < states.len() {
            let state = states[next].clone();
            let number = as_u32(next);
            if let Some(broken) = machine.broken(&state) {
                explored.broken = Some((broken, explored.way_to(number)));
                return explored;
            }
            explored.waiting.push(machine.waiting(&state));
            for (step, after) in machine.steps(&state) {
                let label = *label_numbers.entry(step).or_insert_with(|| {
                    explored.labels.push(step);
                    as_u32(explored.labels.len() - 1)
                });
                let to = match numbers.entry(after) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(new) => {
                        let to = as_u32(states.len());
                        states.push(new.key().clone());
                        explored.found_by.push((number, label));
                        *new.insert(to)
                    }
                };
                let fairness = machine.fairness(&state, step);
                explored.edges.push(Edge { label, to, fairness });
            }
            explored.first_edge.push(as_u32(explored.edges.len()));
            next += 1;
        }
        explored
    }

    /// The number of states.
    pub fn states(&self) -> usize {
        self.waiting.len()
    }

    /// The number of steps between them.
    pub fn steps(&self) -> usize {
        self.edges.len()
    }

    pub(crate) fn edges_of(&self, state: u32) -> &[Edge] {
        let at = |n: u32| self.first_edge[n as usize] as usize;
        &self.edges[at(state)..at(state + 1)]
    }

    /// A shortest way from the start to a state.
    pub(crate) fn way_to(&self, state: u32) -> Trace {
        let mut steps = Vec::new();
        let mut at = state;
        while let (before, label) = self.found_by[at as usize]
            && before != NOWHERE
        {
            steps.push(self.labels[label as usize].to_string());
            at = before;
        }
        steps.reverse();
        Trace { steps, repeats: Vec::new() }
    }
}

/// A model with more states does not fit into memory.
fn as_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or_else(|_| panic!("the model has more than {} states", u32::MAX))
}

/// A search hashes millions of small states, and no attacker chooses them.
type Quick = BuildHasherDefault<QuickHasher>;

#[derive(Default)]
struct QuickHasher(u64);

impl Hasher for QuickHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u8(*byte));
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        // The map looks at the highest and the lowest bits.
        self.0 ^ (self.0 >> 32)
    }
}
