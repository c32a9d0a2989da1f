//! How many deliveries a node holds for each handler.
//!
//! One that is quick gets many at a time, so that it does not wait for the next look. One that is slow
//! gets few: the others are there for other nodes.

use std::collections::HashMap;

use crate::handler_set::Handler;

/// How many a node holds for a handler at most.
const MOST: usize = 1_024;

/// What a node holds for its handlers at most at present.
#[derive(Debug, Default)]
pub(crate) struct HeldSizes {
    of_handlers: HashMap<&'static str, HeldSize>,
}

impl HeldSizes {
    /// How many deliveries a handler gets.
    pub(crate) fn size(&mut self, handler: &Handler) -> usize {
        self.of(handler).size
    }

    /// Takes note of a look that had `room` for a handler and claimed so many. `left` were held when
    /// they arrived.
    pub(crate) fn claimed(&mut self, handler: &Handler, room: usize, claimed: usize, left: usize) {
        self.of(handler).claimed(room, claimed, left);
    }

    /// Whether it is time to look for more, because only half is left of what was held.
    pub(crate) fn is_half_empty(&self, handler: &str, held: usize) -> bool {
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
    /// Whether the last look has filled it, so that there may be more.
    is_full: bool,
}

impl HeldSize {
    fn new(least: usize) -> Self {
        Self { least, size: least, is_full: false }
    }

    fn claimed(&mut self, room: usize, claimed: usize, left: usize) {
        if self.is_full && left == 0 {
            self.size = (self.size * 2).min(MOST);
        } else if left > self.size / 4 {
            self.size = (self.size / 2).max(self.least);
        }
        self.is_full = claimed >= room;
    }

    fn is_half_empty(&self, held: usize) -> bool {
        self.is_full && held <= self.size / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_that_waits_for_each_look_gets_more_and_a_slow_one_the_least() {
        let mut size = HeldSize::new(64);
        let mut sizes = Vec::new();
        for _ in 0..6 {
            size.claimed(size.size, size.size, 0);
            sizes.push(size.size);
        }
        assert_eq!(sizes, [64, 128, 256, 512, 1_024, 1_024]);
        for _ in 0..6 {
            size.claimed(0, 0, size.size);
        }
        assert_eq!(size.size, 64);
    }

    #[test]
    fn more_is_looked_for_while_looks_fill_the_size() {
        let mut size = HeldSize::new(64);
        assert!(!size.is_half_empty(0), "there was no look");
        size.claimed(64, 64, 0);
        assert!(!size.is_half_empty(33));
        assert!(size.is_half_empty(32));
        size.claimed(32, 31, 30);
        assert!(!size.is_half_empty(0), "there was no more");
        // No room is a full size, too.
        size.claimed(0, 0, 64);
        assert!(size.is_half_empty(10));
    }
}
