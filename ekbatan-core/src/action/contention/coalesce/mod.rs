//! The coalesced strategy: calls of one key that wait in this process are performed one after
//! another, each on the rows that the calls before it stage, and committed together.
//!
//! From bottom to top: a [`group_batch`] collects what the members write and merges it, a
//! [`group_sender`] sends it to the database, a [`group_commit`] answers the members, a
//! [`call_group`] gathers them, [`group`] is the state machine that decides who performs next and
//! when the group commits, [`late_turns`] ends turns that would block it, and a [`member`] is one
//! call on its way through it. Waiting calls stand in
//! [`call_queues`](crate::action::call_queues).

mod call_group;
mod group;
mod group_batch;
mod group_commit;
mod group_sender;
mod guard;
mod late_turns;
mod member;

pub(super) use group::Coalescer;
pub(super) use member::coalesced;
