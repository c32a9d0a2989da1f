//! How many deliveries a node holds for each handler.
//!
//! One that is quick gets many at a time, so that it does not wait for the next look. One that is slow
//! gets few: the others are there for other nodes.

use std::collections::HashMap;

use ekbatan_core::__private::deliveries::PriorityCounts;
use ekbatan_core::action::Priority;

use crate::claims::candidates::Room;
use crate::handlers::node_handler::Handler;

/// How many of one priority a node holds for a handler at most.
const MOST: usize = 1_024;

/// What a node holds for its handlers at most at present.
#[derive(Debug, Default)]
pub(crate) struct HeldSizes {
    of_handlers: HashMap<&'static str, HeldSize>,
}

impl HeldSizes {
    /// How many deliveries of one priority a handler gets.
    pub(crate) fn size(&mut self, handler: &Handler) -> usize {
        self.of(handler).size
    }

    /// Takes note of a look that had `room` for a handler and claimed so many. `left` were held when
    /// they arrived.
    pub(crate) fn claimed(
        &mut self,
        handler: &Handler,
        room: &Room,
        claimed: PriorityCounts,
        left: PriorityCounts,
    ) {
        self.of(handler).claimed(room, claimed, left);
    }

    /// Whether it is time to look for more, because only half is left of what was held. What is held of
    /// lower priorities does not count: it would begin before more urgent calls that are due.
    pub(crate) fn is_half_empty(&self, handler: &str, held: PriorityCounts) -> bool {
        self.of_handlers.get(handler).is_some_and(|size| size.is_half_empty(held))
    }

    fn of(&mut self, handler: &Handler) -> &mut HeldSize {
        let size = || HeldSize::new(handler.most_held());
        self.of_handlers.entry(handler.name).or_insert_with(size)
    }
}

#[derive(Debug, Clone, Copy)]
struct HeldSize {
    least: usize,
    size: usize,
    /// The priorities that the last look has filled, so that there may be more.
    full: [bool; Priority::ALL.len()],
}

impl HeldSize {
    fn new(least: usize) -> Self {
        Self { least, size: least, full: Default::default() }
    }

    fn claimed(&mut self, room: &Room, claimed: PriorityCounts, left: PriorityCounts) {
        let mut full = Priority::ALL.into_iter().filter(|of| self.full[of.position()]);
        let most_urgent = full.next();
        // Low calls that wait because others are due say nothing of how quick the handler is.
        let left = most_urgent.map_or(left.all(), |priority| left.not_lower(priority));
        if most_urgent.is_some() && left == 0 {
            self.size = (self.size * 2).min(MOST);
        } else if left > self.size / 4 {
            self.size = (self.size / 2).max(self.least);
        }
        for (priority, room) in room {
            self.full[priority.position()] = claimed.not_lower(*priority) >= *room;
        }
    }

    fn is_half_empty(&self, held: PriorityCounts) -> bool {
        let mut full = Priority::ALL.into_iter().filter(|of| self.full[of.position()]);
        full.any(|priority| held.room(priority, self.size) >= self.size.div_ceil(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(priority: Priority, count: usize) -> PriorityCounts {
        PriorityCounts::of(std::iter::repeat_n(priority, count))
    }

    fn normal(count: usize) -> PriorityCounts {
        counts(Priority::Normal, count)
    }

    /// Takes note of a look for events.
    fn claimed(size: &mut HeldSize, room: usize, claimed: usize, left: usize) {
        size.claimed(&vec![(Priority::Normal, room)], normal(claimed), normal(left));
    }

    #[test]
    fn a_handler_that_waits_for_each_look_gets_more_and_a_slow_one_the_least() {
        let mut size = HeldSize::new(64);
        let mut sizes = Vec::new();
        for _ in 0..6 {
            let all = size.size;
            claimed(&mut size, all, all, 0);
            sizes.push(size.size);
        }
        assert_eq!(sizes, [64, 128, 256, 512, 1_024, 1_024]);
        for _ in 0..6 {
            let left = size.size;
            claimed(&mut size, 0, 0, left);
        }
        assert_eq!(size.size, 64);
    }

    #[test]
    fn more_is_looked_for_while_looks_fill_the_size() {
        let mut size = HeldSize::new(64);
        assert!(!size.is_half_empty(normal(0)), "there was no look");
        claimed(&mut size, 64, 64, 0);
        assert!(!size.is_half_empty(normal(33)));
        assert!(size.is_half_empty(normal(32)));
        claimed(&mut size, 32, 31, 30);
        assert!(!size.is_half_empty(normal(0)), "there was no more");
        // No room is a full size, too.
        claimed(&mut size, 0, 0, 64);
        assert!(size.is_half_empty(normal(10)));
    }

    #[test]
    fn calls_of_lower_priority_delay_no_look() {
        let mut size = HeldSize::new(64);
        let room = |low| vec![(Priority::High, 64), (Priority::Normal, 64), (Priority::Low, low)];
        let low = counts(Priority::Low, 64);
        size.claimed(&room(64), low, normal(0));
        assert!(!size.is_half_empty(low));
        size.claimed(&room(0), counts(Priority::High, 64), low);
        assert!(!size.is_half_empty(low + counts(Priority::High, 33)));
        assert!(size.is_half_empty(low + counts(Priority::High, 32)));
        size.claimed(&room(0), counts(Priority::High, 10), low);
        assert!(!size.is_half_empty(low + low), "there was no more that is high");
    }

    #[test]
    fn quick_calls_get_more_at_a_time_while_low_ones_wait() {
        let mut size = HeldSize::new(64);
        let low = counts(Priority::Low, 64);
        let mut sizes = Vec::new();
        for _ in 0..6 {
            let room = size.size;
            let room = vec![(Priority::High, room), (Priority::Normal, room), (Priority::Low, 0)];
            size.claimed(&room, counts(Priority::High, size.size), low);
            sizes.push(size.size);
        }
        assert_eq!(sizes, [64, 128, 256, 512, 1_024, 1_024]);
    }
}
