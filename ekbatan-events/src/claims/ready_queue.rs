//! The deliveries of a handler that may start now.

use std::collections::VecDeque;

use ekbatan_core::action::Priority;

use crate::claims::claimed::Claimed;

/// Deliveries of one handler: those of higher priority first, and of one priority in the order in which
/// they arrived.
#[derive(Default)]
pub(crate) struct ReadyQueue([VecDeque<Claimed>; Priority::ALL.len()]);

impl ReadyQueue {
    pub(crate) fn push(&mut self, one: Claimed) {
        self.0[one.delivery.priority.position()].push_back(one);
    }

    pub(crate) fn first(&self) -> Option<&Claimed> {
        self.0.iter().find_map(VecDeque::front)
    }

    pub(crate) fn pop(&mut self) -> Option<Claimed> {
        self.0.iter_mut().find_map(VecDeque::pop_front)
    }

    /// All of them.
    pub(crate) fn into_all(self) -> impl Iterator<Item = Claimed> {
        self.0.into_iter().flatten()
    }
}
