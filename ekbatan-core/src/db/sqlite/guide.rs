//! The guide shows the statements of this dialect.

use super::statement::write_row;
use crate::db::ChangeKind::{Insert, Update};
use crate::db::eventlog::EVENTS;
use crate::db::fixtures::table;
use crate::db::guide::{SQLITE, WALLETS, assert_shown};

#[test]
fn a_deposit_is_sent_as_the_guide_shows_it() {
    let (wallets, events) = (table(&WALLETS, |_| "TEXT"), table(&EVENTS, |_| "TEXT"));
    let (update, insert) = (write_row(&wallets, Update), write_row(&events, Insert));
    assert_shown(SQLITE, &[format!("BEGIN IMMEDIATE; {update}; {insert}; COMMIT")]);
}
