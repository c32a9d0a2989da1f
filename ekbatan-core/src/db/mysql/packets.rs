//! Statements of one transaction, parted into packets.

use crate::db::{DbError, DbErrorKind};

/// Up to this length a packet is one TLS record, and so one write. sqlx leaves Nagle's algorithm
/// on: the second write of a packet waits for the acknowledgement of the first, which the server
/// delays by 40 ms. That is longer than several round trips.
pub(super) const ONE_WRITE: usize = 15_000;

/// From this length on, the round trips of short packets would take longer than that delay.
const MANY_WRITES: usize = 150_000;

/// The length of a packet that takes many writes.
const FULL_PACKET: usize = 1_000_000;

/// The statements of one transaction, in order.
pub(super) struct PacketPlan {
    max_packet: usize,
    statements: Vec<String>,
}

impl PacketPlan {
    pub(super) fn new(max_packet: usize) -> Self {
        Self { max_packet, statements: Vec::new() }
    }

    pub(super) fn push(&mut self, statement: impl Into<String>) -> Result<(), DbError> {
        let statement = statement.into();
        // The server closes the connection on a longer packet.
        if statement.len() + 1_000 > self.max_packet {
            let why = format!(
                "a row takes {} bytes to write, and the server's max_allowed_packet is {}; raise that, or keep less in a row",
                statement.len(),
                self.max_packet
            );
            return Err(DbError::new(DbErrorKind::TooLarge, why));
        }
        self.statements.push(statement);
        Ok(())
    }

    /// As few packets as possible that avoid the delay. A statement that is longer than a packet
    /// should be is a packet by itself.
    pub(super) fn packets(self) -> Vec<String> {
        let total: usize = self.statements.iter().map(String::len).sum();
        let full = if total < MANY_WRITES { ONE_WRITE } else { FULL_PACKET };
        let mut packets: Vec<String> = Vec::new();
        for statement in self.statements {
            match packets.last_mut() {
                Some(open) if open.len() + statement.len() < full.min(self.max_packet / 2) => {
                    open.push_str("; ");
                    open.push_str(&statement);
                }
                _ => packets.push(statement),
            }
        }
        packets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(lengths: &[usize]) -> PacketPlan {
        let mut plan = PacketPlan::new(16_000_000);
        for length in lengths {
            plan.push("x".repeat(*length)).unwrap();
        }
        plan
    }

    fn lengths(plan: PacketPlan) -> Vec<usize> {
        plan.packets().iter().map(String::len).collect()
    }

    #[test]
    fn a_short_plan_is_one_packet_and_a_long_one_has_packets_of_one_write() {
        assert_eq!(lengths(plan(&[100, 200, 6])), [100 + 200 + 6 + 4]);
        assert_eq!(lengths(plan(&[10_000, 10_000, 6])), [10_000, 10_008]);
        assert_eq!(lengths(plan(&[100, 20_000, 6])), [100, 20_000, 6]);
    }

    #[test]
    fn the_longest_plans_have_few_long_packets() {
        assert_eq!(lengths(plan(&[15_000; 100])).len(), 2);
    }

    #[test]
    fn a_row_that_exceeds_a_packet_is_rejected() {
        let mut plan = PacketPlan::new(10_000);
        let error = plan.push("x".repeat(9_500)).unwrap_err();
        assert_eq!(error.kind(), DbErrorKind::TooLarge);
        assert!(error.to_string().contains("max_allowed_packet is 10000"), "{error}");
    }
}
