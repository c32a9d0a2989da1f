//! Whether a waiter can wait for ever.
//!
//! A run in which a caller waits for ever stays among the states in which that caller waits. It
//! either stops in a state that no fair step leaves, or it ends in a strongly connected part of
//! these states and visits every state of the part again and again. So the check looks at each
//! part. The part is an endless run if both rules hold:
//!
//! 1. Every weakly fair step is taken in the part, or is impossible in one of its states.
//! 2. Every strongly fair step that is possible in the part is taken in it.
//!
//! If rule 2 fails for a step, the check removes the states in which that step is possible and
//! looks at the parts that remain.

use std::collections::{HashMap, HashSet};

use crate::search::{Edge, Explored, Fairness, Machine, Trace};

impl<M: Machine> Explored<M> {
    /// A run in which the waiter of this bit waits for ever, if there is one.
    pub fn waits_for_ever(&self, waiter: u32) -> Option<Trace> {
        let waits = |state: &u32| self.waiting[*state as usize] & (1 << waiter) != 0;
        let all: Vec<u32> = (0..self.waiting.len() as u32).filter(waits).collect();
        let mut parts = vec![all];
        while let Some(states) = parts.pop() {
            let within: HashMap<u32, u32> =
                states.iter().enumerate().map(|(n, state)| (*state, n as u32)).collect();
            for part in self.strongly_connected(&states, &within) {
                match self.endless(&part) {
                    Endless::Yes => return Some(self.trace_of(&part)),
                    Endless::No => {}
                    Endless::Without(smaller) => parts.push(smaller),
                }
            }
        }
        None
    }

    /// Whether a fair run can stay in this part for ever.
    fn endless(&self, part: &[u32]) -> Endless {
        let members: HashSet<u32> = part.iter().copied().collect();
        let mut taken = HashSet::new();
        // In how many states of the part a step is possible that fairness demands.
        let mut weak: HashMap<u32, usize> = HashMap::new();
        let mut strong = HashSet::new();
        for state in part {
            for Edge { label, to, fairness } in self.edges_of(*state) {
                match fairness {
                    Fairness::Fault => continue,
                    Fairness::Choice => {}
                    Fairness::Weak => *weak.entry(*label).or_default() += 1,
                    Fairness::Strong => drop(strong.insert(*label)),
                }
                if members.contains(to) {
                    taken.insert(*label);
                }
            }
        }
        if weak.iter().any(|(label, states)| *states == part.len() && !taken.contains(label)) {
            return Endless::No;
        }
        let untaken: HashSet<u32> = strong.difference(&taken).copied().collect();
        if untaken.is_empty() {
            return Endless::Yes;
        }
        let demands =
            |edge: &Edge| edge.fairness == Fairness::Strong && untaken.contains(&edge.label);
        let rest = |state: &u32| !self.edges_of(*state).iter().any(demands);
        Endless::Without(part.iter().copied().filter(rest).collect())
    }

    /// The way to a part, and the steps within it.
    fn trace_of(&self, part: &[u32]) -> Trace {
        let members: HashSet<u32> = part.iter().copied().collect();
        let nearest = part.iter().min().copied().unwrap_or_default();
        let mut trace = self.way_to(nearest);
        for state in part {
            for edge in self.edges_of(*state) {
                let step = self.labels[edge.label as usize].to_string();
                let repeats = edge.fairness != Fairness::Fault && members.contains(&edge.to);
                if repeats && !trace.repeats.contains(&step) {
                    trace.repeats.push(step);
                }
            }
        }
        trace
    }

    /// The strongly connected parts of the graph of `states`, without faults, by Tarjan's
    /// algorithm. `within` has the position of each state in `states`.
    fn strongly_connected(&self, states: &[u32], within: &HashMap<u32, u32>) -> Vec<Vec<u32>> {
        const NEW: u32 = u32::MAX;
        let mut index = vec![NEW; states.len()];
        let mut low = vec![0; states.len()];
        let mut on_stack = vec![false; states.len()];
        let (mut stack, mut parts, mut count) = (Vec::new(), Vec::new(), 0);
        for root in 0..states.len() {
            if index[root] != NEW {
                continue;
            }
            // The states on the way from the root, each with the edge to follow next.
            let mut way = vec![(root, 0)];
            while let Some((at, edge)) = way.last_mut() {
                let at = *at;
                if *edge == 0 {
                    (index[at], low[at]) = (count, count);
                    count += 1;
                    stack.push(at);
                    on_stack[at] = true;
                }
                let edges = self.edges_of(states[at]);
                let followed = edges[*edge..].iter().position(|edge| {
                    edge.fairness != Fairness::Fault && within.contains_key(&edge.to)
                });
                if let Some(skipped) = followed {
                    let to = within[&edges[*edge + skipped].to] as usize;
                    *edge += skipped + 1;
                    if index[to] == NEW {
                        way.push((to, 0));
                    } else if on_stack[to] {
                        low[at] = low[at].min(index[to]);
                    }
                    continue;
                }
                way.pop();
                if let Some((before, _)) = way.last() {
                    low[*before] = low[*before].min(low[at]);
                }
                if low[at] == index[at] {
                    let mut part = Vec::new();
                    while let Some(member) = stack.pop() {
                        on_stack[member] = false;
                        part.push(states[member]);
                        if member == at {
                            break;
                        }
                    }
                    parts.push(part);
                }
            }
        }
        parts
    }
}

enum Endless {
    Yes,
    No,
    /// Perhaps in these of its states.
    Without(Vec<u32>),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that is written down as its steps, from state 0 on. The states below `waits`
    /// are those in which the only waiter waits.
    struct Listed {
        waits: u8,
        steps: &'static [(u8, char, Fairness, u8)],
    }

    impl Machine for Listed {
        type State = u8;
        type Step = char;
        type Broken = ();

        fn start(&self) -> u8 {
            0
        }

        fn steps(&self, state: &u8) -> Vec<(char, u8)> {
            let of_state = self.steps.iter().filter(|(from, ..)| from == state);
            of_state.map(|(_, step, _, to)| (*step, *to)).collect()
        }

        fn broken(&self, _: &u8) -> Option<()> {
            None
        }

        fn fairness(&self, state: &u8, step: char) -> Fairness {
            let of_step =
                self.steps.iter().find(|(from, name, ..)| (*from, *name) == (*state, step));
            of_step.unwrap().2
        }

        fn waiting(&self, state: &u8) -> u32 {
            u32::from(*state < self.waits)
        }
    }

    fn waits_for_ever(waits: u8, steps: &'static [(u8, char, Fairness, u8)]) -> bool {
        Explored::of(&Listed { waits, steps }).waits_for_ever(0).is_some()
    }

    use Fairness::{Choice, Fault, Strong, Weak};

    #[test]
    fn a_run_that_stops_while_somebody_waits_is_found() {
        assert!(waits_for_ever(2, &[(0, 'a', Weak, 1)]));
        assert!(waits_for_ever(2, &[(0, 'a', Weak, 1), (1, 'b', Choice, 2)]), "b may be left out");
        assert!(waits_for_ever(2, &[(0, 'a', Weak, 1), (1, 'b', Fault, 2)]), "b does not help");
        assert!(!waits_for_ever(2, &[(0, 'a', Weak, 1), (1, 'b', Weak, 2)]));
        assert!(!waits_for_ever(2, &[(0, 'a', Weak, 1), (1, 'b', Strong, 2)]));
    }

    #[test]
    fn a_weakly_fair_step_is_taken_if_it_stays_possible() {
        let stays =
            &[(0, 'a', Choice, 1), (1, 'b', Choice, 0), (0, 'c', Weak, 2), (1, 'c', Weak, 2)];
        assert!(!waits_for_ever(2, stays));
        let comes_and_goes = &[(0, 'a', Weak, 1), (1, 'b', Weak, 0), (0, 'c', Weak, 2)];
        assert!(waits_for_ever(2, comes_and_goes));
        let by_itself = &[(0, 'a', Choice, 0), (0, 'c', Weak, 1)];
        assert!(!waits_for_ever(1, by_itself));
    }

    #[test]
    fn a_strongly_fair_step_is_taken_if_it_is_possible_again_and_again() {
        let comes_and_goes = &[(0, 'a', Weak, 1), (1, 'b', Weak, 0), (0, 'c', Strong, 2)];
        assert!(!waits_for_ever(2, comes_and_goes));
        // The run can leave the state in which the step is possible.
        let within = &[
            (0, 'a', Weak, 1),
            (1, 'b', Choice, 0),
            (1, 'd', Weak, 2),
            (2, 'd', Weak, 1),
            (0, 'c', Strong, 3),
        ];
        assert!(waits_for_ever(3, within));
    }

    #[test]
    fn a_fault_does_not_make_a_run_endless() {
        assert!(!waits_for_ever(2, &[(0, 'a', Weak, 2), (0, 'f', Fault, 1), (1, 'a', Weak, 2)]));
        let returns_by_fault = &[(0, 'a', Weak, 1), (1, 'f', Fault, 0), (1, 'b', Weak, 2)];
        assert!(!waits_for_ever(2, returns_by_fault));
    }
}
