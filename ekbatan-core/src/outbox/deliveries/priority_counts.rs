//! How many deliveries of a handler a node holds, by their priority.

use std::ops::{Add, AddAssign, SubAssign};

use crate::outbox::Priority;

/// How many deliveries of a handler a node holds in all, whatever their priority. No node holds more than
/// a third of that of one priority by itself.
const MOST_OF_ALL: usize = 3 * 1_024;

/// Numbers of deliveries, by their priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PriorityCounts([usize; Priority::ALL.len()]);

impl PriorityCounts {
    /// One delivery of this priority.
    pub fn one(priority: Priority) -> Self {
        let mut counts = Self::default();
        counts.0[priority.position()] = 1;
        counts
    }

    /// Deliveries with these priorities.
    pub fn of(priorities: impl Iterator<Item = Priority>) -> Self {
        priorities.map(Self::one).fold(Self::default(), Add::add)
    }

    /// The number of all of them.
    pub fn all(self) -> usize {
        self.0.iter().sum()
    }

    /// The number of those that have this priority or a higher one.
    pub fn not_lower(self, priority: Priority) -> usize {
        self.0.iter().take(priority.position() + 1).sum()
    }

    /// How many more of a priority a node may hold that holds these, if it holds `most` of one
    /// priority. Those of lower ones take no room: otherwise slow calls would keep more urgent ones from
    /// being found.
    pub fn room(self, priority: Priority, most: usize) -> usize {
        // Calls in turn that are claimed for more urgent ones behind them are not bounded by `most`.
        let of_all = MOST_OF_ALL.saturating_sub(self.all());
        most.saturating_sub(self.not_lower(priority)).min(of_all)
    }

    /// Whether a node that holds these may hold some more, if it holds `most` of one priority.
    pub(super) fn has_room_for(self, more: Self, most: usize) -> bool {
        let lowest = more.0.iter().rposition(|count| *count > 0).unwrap_or_default();
        self.room(Priority::ALL[lowest], most) >= more.all()
    }
}

impl Add for PriorityCounts {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl AddAssign for PriorityCounts {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, other)| *count += other);
    }
}

impl SubAssign for PriorityCounts {
    fn sub_assign(&mut self, other: Self) {
        let counts = self.0.iter_mut().zip(other.0);
        counts.for_each(|(count, other)| *count = count.saturating_sub(other));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 4;

    fn counts(high: usize, normal: usize, low: usize) -> PriorityCounts {
        PriorityCounts([high, normal, low])
    }

    fn rooms(of: PriorityCounts) -> [usize; 3] {
        Priority::ALL.map(|priority| of.room(priority, MOST))
    }

    #[test]
    fn what_is_held_of_a_lower_priority_takes_no_room() {
        assert_eq!(rooms(counts(0, 0, 0)), [4, 4, 4]);
        assert_eq!(rooms(counts(0, 0, 4)), [4, 4, 0]);
        assert_eq!(rooms(counts(0, 3, 1)), [4, 1, 0]);
        assert_eq!(rooms(counts(2, 0, 0)), [2, 2, 2]);
        assert_eq!(rooms(counts(4, 0, 0)), [0, 0, 0]);
        // The node held more of the slow ones once.
        assert_eq!(rooms(counts(0, 0, 1_024)), [4, 4, 0]);
        assert_eq!(rooms(counts(0, 0, MOST_OF_ALL - 1)), [1, 1, 0]);
        assert_eq!(rooms(counts(0, 0, MOST_OF_ALL)), [0, 0, 0]);
    }

    #[test]
    fn deliveries_that_come_together_find_room_for_the_lowest_of_them() {
        assert!(counts(0, 0, 4).has_room_for(counts(3, 1, 0), MOST));
        assert!(!counts(0, 0, 4).has_room_for(counts(3, 0, 1), MOST));
        assert!(!counts(1, 0, 0).has_room_for(counts(4, 0, 0), MOST));
        assert!(counts(4, 0, 0).has_room_for(counts(0, 0, 0), MOST));
    }
}
