//! Statements of one transaction, parted into packets.

use crate::db::{DbError, DbErrorKind};

/// The length up to which a packet is one record of TLS, and so one write. sqlx leaves Nagle's
/// algorithm on: the second write of a packet waits until the server has acknowledged the
/// first, which it puts off for 40 ms. That is longer than several trips take.
pub(super) const ONE_WRITE: usize = 15_000;

/// From here on the trips would take longer than the waiting.
const MANY_WRITES: usize = 150_000;

/// How long a packet of many writes gets.
const FULL_PACKET: usize = 1_000_000;

/// Statements that follow each other within one transaction.
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
            return Err(DbError::new(DbErrorKind::ValueOutOfRange, why));
        }
        self.statements.push(statement);
        Ok(())
    }

    /// Few packets that are sent without waiting. A statement that is longer than they are to
    /// be is one by itself.
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
    fn a_short_flight_is_one_packet_and_a_long_one_has_packets_of_one_write() {
        assert_eq!(lengths(plan(&[100, 200, 6])), [100 + 200 + 6 + 4]);
        assert_eq!(lengths(plan(&[10_000, 10_000, 6])), [10_000, 10_008]);
        assert_eq!(lengths(plan(&[100, 20_000, 6])), [100, 20_000, 6]);
    }

    #[test]
    fn the_longest_flights_have_few_long_packets() {
        assert_eq!(lengths(plan(&[15_000; 100])).len(), 2);
    }

    #[test]
    fn a_row_that_no_packet_takes_is_refused() {
        let mut plan = PacketPlan::new(10_000);
        let error = plan.push("x".repeat(9_500)).unwrap_err();
        assert_eq!(error.kind(), DbErrorKind::ValueOutOfRange);
        assert!(error.to_string().contains("max_allowed_packet is 10000"), "{error}");
    }
}
