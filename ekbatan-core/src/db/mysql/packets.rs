//! Statements of one transaction, parted into packets.

use crate::db::{DbError, DbErrorKind};

/// Up to this length a packet is one TLS record, and so one write. sqlx leaves Nagle's algorithm
/// on: the second write of a packet waits for the acknowledgement of the first, which the server
/// delays by 40 ms. That is longer than several round trips.
const ONE_RECORD: usize = 15_000;

/// From this length on, the round trips of short packets would take longer than that delay.
const MANY_RECORDS: usize = 150_000;

/// The length of a packet that need not be short.
const FULL_PACKET: usize = 1_000_000;

/// How long the packets of a session may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct PacketLimits {
    /// The longest that the server accepts.
    pub(super) max: usize,
    is_encrypted: bool,
}

impl PacketLimits {
    pub(super) fn new(max: usize, is_encrypted: bool) -> Self {
        Self { max, is_encrypted }
    }

    /// The greatest length of a packet that is sent by one write.
    pub(super) fn one_write(self) -> usize {
        if self.is_encrypted { ONE_RECORD.min(self.longest()) } else { self.longest() }
    }

    /// The length up to which statements of so many bytes share a packet.
    fn shared(self, total: usize) -> usize {
        if total < MANY_RECORDS { self.one_write() } else { self.longest() }
    }

    fn longest(self) -> usize {
        FULL_PACKET.min(self.max / 2)
    }
}

/// The statements of one transaction, in order.
pub(super) struct PacketPlan {
    limits: PacketLimits,
    statements: Vec<String>,
}

impl PacketPlan {
    pub(super) fn new(limits: PacketLimits) -> Self {
        Self { limits, statements: Vec::new() }
    }

    pub(super) fn push(&mut self, statement: impl Into<String>) -> Result<(), DbError> {
        let statement = statement.into();
        // The server closes the connection on a longer packet.
        if statement.len() + 1_000 > self.limits.max {
            let why = format!(
                "a row takes {} bytes to write, and the server's max_allowed_packet is {}; raise that, or keep less in a row",
                statement.len(),
                self.limits.max
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
        let shared = self.limits.shared(total);
        let mut packets: Vec<String> = Vec::new();
        for statement in self.statements {
            match packets.last_mut() {
                Some(open) if open.len() + statement.len() < shared => {
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
        plan_of(PacketLimits::new(16_000_000, true), lengths)
    }

    fn plan_of(limits: PacketLimits, lengths: &[usize]) -> PacketPlan {
        let mut plan = PacketPlan::new(limits);
        for length in lengths {
            plan.push("x".repeat(*length)).unwrap();
        }
        plan
    }

    fn lengths(plan: PacketPlan) -> Vec<usize> {
        plan.packets().iter().map(String::len).collect()
    }

    #[test]
    fn a_short_plan_is_one_packet_and_a_long_one_has_packets_of_one_record() {
        assert_eq!(lengths(plan(&[100, 200, 6])), [100 + 200 + 6 + 4]);
        assert_eq!(lengths(plan(&[10_000, 10_000, 6])), [10_000, 10_008]);
        assert_eq!(lengths(plan(&[100, 20_000, 6])), [100, 20_000, 6]);
    }

    #[test]
    fn without_encryption_a_long_plan_is_one_packet_that_the_server_accepts() {
        let limits = |max| PacketLimits::new(max, false);
        assert_eq!(lengths(plan_of(limits(16_000_000), &[60_000, 60_000, 6])), [120_010]);
        assert_eq!(lengths(plan_of(limits(200_000), &[60_000, 60_000, 6])), [60_000, 60_008]);
    }

    #[test]
    fn the_longest_plans_have_few_long_packets() {
        assert_eq!(lengths(plan(&[15_000; 100])).len(), 2);
    }

    #[test]
    fn rows_that_the_server_would_refuse_together_share_no_statement() {
        for is_encrypted in [true, false] {
            assert_eq!(PacketLimits::new(20_000, is_encrypted).one_write(), 10_000);
        }
    }

    #[test]
    fn a_row_that_exceeds_a_packet_is_rejected() {
        let mut plan = PacketPlan::new(PacketLimits::new(10_000, true));
        let error = plan.push("x".repeat(9_500)).unwrap_err();
        assert_eq!(error.kind(), DbErrorKind::TooLarge);
        assert!(error.to_string().contains("max_allowed_packet is 10000"), "{error}");
    }
}
