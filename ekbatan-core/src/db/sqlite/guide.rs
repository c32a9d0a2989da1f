//! The guide shows the statements of this dialect.

use super::statement::chained;
use crate::db::ChangeKind::{Insert, Update};
use crate::db::eventlog::EVENTS;
use crate::db::fixtures::{change, table};
use crate::db::guide::{SQLITE, WALLETS, assert_shown};

#[test]
fn a_deposit_is_sent_as_the_guide_shows_it() {
    let (wallets, events) = (table(&WALLETS, |_| "TEXT"), table(&EVENTS, |_| "TEXT"));
    let chain = chained(&change(&wallets, Update), &[change(&events, Insert)]);
    assert_shown(SQLITE, &[format!("BEGIN IMMEDIATE; {chain}; COMMIT")]);
}
