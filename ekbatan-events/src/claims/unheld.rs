//! Deliveries that a node has claimed in the database and does not hold: the answer to a claim, to a
//! release, or to a commit that gave it the delivery was lost. Or a commit is still on its way back.

use std::collections::HashSet;

use uuid::Uuid;

/// The deliveries that a node did not hold at its last checks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unheld {
    before: HashSet<Uuid>,
    found: HashSet<Uuid>,
    /// Whether nothing is on its way to the node.
    is_ending: bool,
}

impl Unheld {
    /// For a node that ends.
    pub(crate) fn of_ending_node() -> Self {
        Self { is_ending: true, ..Self::default() }
    }

    /// Begins a check.
    pub(crate) fn begin(&mut self) {
        self.before = std::mem::take(&mut self.found);
    }

    /// Whether to release a delivery that the node does not hold: it was not held at the last check
    /// either.
    pub(crate) fn is_lost(&mut self, delivery: Uuid) -> bool {
        let is_lost = self.is_ending || self.before.contains(&delivery);
        if !is_lost {
            self.found.insert(delivery);
        }
        is_lost
    }

    /// Whether the next check may find lost ones.
    pub(crate) fn has_any(&self) -> bool {
        !self.found.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_is_lost_if_two_checks_in_a_row_find_it() {
        let (mut unheld, [first, second]) = (Unheld::default(), [1, 2].map(Uuid::from_u128));
        unheld.begin();
        assert!(!unheld.is_lost(first), "it may be on its way");
        assert!(unheld.has_any());
        unheld.begin();
        assert!(unheld.is_lost(first));
        assert!(!unheld.is_lost(second));
        unheld.begin();
        unheld.begin();
        assert!(!unheld.is_lost(second), "it was held at the check in between");
    }

    #[test]
    fn nothing_is_on_its_way_to_a_node_that_ends() {
        assert!(Unheld::of_ending_node().is_lost(Uuid::from_u128(1)));
    }
}
