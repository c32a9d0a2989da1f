//! Reads by id that wait at the same moment share a statement: they are folded, as commits are.
//!
//! - A read that finds no other read of its table in flight goes by itself, at once. The future of
//!   its caller drives it; it pays for neither a task nor a channel.
//! - A read that finds one waits. If too few group tasks run for the table ([`pace`] says how many),
//!   it starts one. A group task takes all reads that wait, sends them as one statement, answers
//!   each of them, and ends when no read waits.
//!
//! Invariants:
//! - No read waits for more reads to come, and none for a future that only its caller polls.
//! - A read joins only a statement that is sent later. So it sees one committed state that is not
//!   older than the moment when it was asked for.
//! - While reads wait, a task runs that takes them. When a task dies, those that wait and those
//!   that it had taken are sent by their own callers.
//! - Reads of different runtimes share nothing: a runtime that ends, or that nobody drives, keeps
//!   no other from reading.
//! - A table has an entry only while its reads are in flight, and no lock is held over an `await`.

mod find;
mod group;
mod pace;
mod waiting;

pub(crate) use self::waiting::FoldedReads;
