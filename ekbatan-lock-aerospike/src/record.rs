//! The operations with which the server itself decides about the record of a key.
//!
//! Bins: `o` the owner, `h` the holder's name, `t` the token, `s` since when, `u` until when; `w` a
//! process that waits and `x` until when it is known to; `g` acquisitions that gave up and may still
//! be on their way; `k` the key.
//!
//! Invariants: every time is that of the server, in milliseconds. A token only grows. A filter says
//! on which grant an operation has an effect; the server does not apply it to a record that is not
//! there, which is a free key.

use std::time::Duration;

use aerospike::expressions::lists::get_by_value;
use aerospike::expressions::{
    Expression, and, bin_exists, cond, eq, gt, int_bin, int_val, last_update, le, list_bin, max,
    ne, not, num_add, num_div, num_sub, or, since_update, string_bin, string_val,
};
use aerospike::operations::exp::{ExpReadFlags, ExpWriteFlags, read_exp, write_exp};
use aerospike::operations::lists::{self, ListPolicy, ListReturnType};
use aerospike::operations::{Operation, get_bin, put};
use aerospike::{Bin, Value};
use ekbatan_lock::{Grant, GrantRequest};
use uuid::Uuid;

/// How long a waiter is known to want a key after it asked for it.
const MARK: i64 = 2_000;

/// A mark that lasts for less is renewed.
const RENEWED_MARK: i64 = 1_000;

/// The number of tries that were given up and are kept in mind for one key.
const GONE: i64 = 16;

/// Longer terms are cut: the server keeps a record for ten years at most.
const LONGEST: Duration = Duration::from_secs(9 * 365 * 86_400);

/// How long a key that nobody uses is remembered. By then the clock alone gives greater tokens.
const REMEMBERED: u64 = 86_400;

/// Rounded up, and at least one: a key must not be free earlier than its holder expects.
pub(crate) fn milliseconds(duration: Duration) -> i64 {
    let whole = duration.min(LONGEST).as_nanos().div_ceil(1_000_000);
    i64::try_from(whole).unwrap_or(i64::MAX).max(1)
}

/// How many seconds the server keeps the record of a grant: longer than its term.
pub(crate) fn kept(term: Duration) -> u32 {
    let seconds = term.min(LONGEST).as_secs().saturating_add(1 + REMEMBERED);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// The time of the server. It names no clock, but when it last wrote the record and how long ago
/// that was; of a record that it makes now, the first is zero.
fn now() -> Expression {
    num_add(vec![num_div(vec![last_update(), int_val(1_000_000)]), since_update()])
}

/// The value of a bin, or zero if there is none.
fn number(bin: &str) -> Expression {
    cond(vec![bin_exists(bin), int_bin(bin), int_val(0)])
}

fn text(bin: &str) -> Expression {
    cond(vec![bin_exists(bin), string_bin(bin), string_val("")])
}

fn stands() -> Expression {
    gt(number("u"), now())
}

fn is_owner(owner: Uuid) -> Expression {
    eq(text("o"), string_val(owner.to_string()))
}

fn has_gone(owner: Uuid) -> Expression {
    let count =
        get_by_value(ListReturnType::COUNT, string_val(owner.to_string()), list_bin("g"), &[]);
    and(vec![bin_exists("g"), gt(count, int_val(0))])
}

fn write(bin: &str, value: Expression) -> Operation {
    write_exp(bin, value, ExpWriteFlags::DEFAULT)
}

fn read(name: &str, value: Expression) -> Operation {
    read_exp(name, value, ExpReadFlags::DEFAULT)
}

fn put_text(bin: &str, value: impl Into<String>) -> Operation {
    put(&Bin::new(bin, Value::String(value.into())))
}

/// A token that is greater than the last one, and at least the clock, so that tokens grow even if
/// the record was lost.
fn next_token() -> Expression {
    max(vec![num_add(vec![number("t"), int_val(1)]), now()])
}

/// Whether a try may take the key: it is free, or was granted to it before and the answer was lost.
pub(crate) fn is_free_for(owner: Uuid) -> Expression {
    or(vec![
        and(vec![is_owner(owner), stands()]),
        and(vec![le(number("u"), now()), not(has_gone(owner))]),
    ])
}

/// Takes the key. The last result is the token.
pub(crate) fn take(key: &str, request: &GrantRequest, process: Uuid) -> Vec<Operation> {
    let again = || and(vec![is_owner(request.owner), stands()]);
    let by_us = eq(text("w"), string_val(process.to_string()));
    // The server executes them in order, each with the effects of those before.
    vec![
        write("t", cond(vec![again(), number("t"), next_token()])),
        write("s", cond(vec![again(), number("s"), now()])),
        // A try that comes once more, after its lease was extended, must not shorten the term.
        write(
            "u",
            cond(vec![
                again(),
                max(vec![number("u"), in_time(request.term)]),
                in_time(request.term),
            ]),
        ),
        put_text("o", request.owner.to_string()),
        put_text("h", &request.holder),
        put_text("k", key),
        // Others that are marked still wait.
        write("x", cond(vec![by_us, int_val(0), number("x")])),
        get_bin("t"),
    ]
}

/// Whether the grant stands; by the owner alone if the answer with the token was lost.
pub(crate) fn is_grant(grant: &Grant) -> Expression {
    let mut all = vec![is_owner(grant.owner), stands()];
    if grant.token != 0 {
        all.push(eq(number("t"), int_val(grant.token)));
    }
    and(all)
}

fn in_time(term: Duration) -> Expression {
    num_add(vec![now(), int_val(milliseconds(term))])
}

/// Whether the grant stands, and lasts for no longer than this term from now.
pub(crate) fn is_extended_by(grant: &Grant, term: Duration) -> Expression {
    and(vec![is_grant(grant), le(number("u"), in_time(term))])
}

/// Makes the grant last for at least this term from now. It may be carried out late, after a later one.
/// So it never shortens a term.
pub(crate) fn extend(term: Duration) -> Vec<Operation> {
    vec![write("u", max(vec![number("u"), in_time(term)]))]
}

/// Makes the grant last for this term from now.
pub(crate) fn set_term(term: Duration) -> Vec<Operation> {
    vec![write("u", in_time(term))]
}

/// Whether another process is known to wait.
fn is_wanted(process: Uuid) -> Expression {
    and(vec![gt(number("x"), now()), ne(text("w"), string_val(process.to_string()))])
}

fn as_number(condition: Expression) -> Expression {
    cond(vec![condition, int_val(1), int_val(0)])
}

/// Ends the grant. The first result is whether another process waits. Removes its mark, which would stop
/// each holder for a moment if that process has gone; one that still waits marks the key again.
pub(crate) fn release(process: Uuid) -> Vec<Operation> {
    vec![
        read("wanted", as_number(is_wanted(process))),
        write("x", int_val(0)),
        write("u", int_val(0)),
    ]
}

/// Ends the grant of an acquisition whose answer was lost, if there is one, and refuses the
/// acquisition should it arrive later. The first result is whether there was a grant.
pub(crate) fn give_up(owner: Uuid) -> Vec<Operation> {
    let stood = || and(vec![is_owner(owner), stands()]);
    vec![
        read("ours", as_number(stood())),
        write("u", cond(vec![stood(), int_val(0), number("u")])),
        lists::append(&ListPolicy::default(), "g", Value::String(owner.to_string())),
        lists::remove_by_index_range_count("g", -GONE, GONE, ListReturnType::NONE.inverted()),
    ]
}

/// Ends the grant, and uses up a token: that of a grant ended by force must be smaller than the next.
pub(crate) fn force() -> Vec<Operation> {
    vec![write("t", next_token()), write("u", int_val(0))]
}

/// Whether a mark is needed: the key is held, and no mark lasts for long.
pub(crate) fn needs_mark() -> Expression {
    let mark = num_add(vec![now(), int_val(RENEWED_MARK)]);
    and(vec![stands(), le(number("x"), mark)])
}

/// Says that a process wants the key.
pub(crate) fn mark(process: Uuid) -> Vec<Operation> {
    let until = num_add(vec![now(), int_val(MARK)]);
    vec![put_text("w", process.to_string()), write("x", until)]
}

/// What waiters look at: the token, and the milliseconds for which the key is held.
pub(crate) fn look() -> Vec<Operation> {
    vec![read("t", number("t")), read("rest", num_sub(vec![number("u"), now()]))]
}

/// The holder: its owner, name, token, the milliseconds since and until then.
pub(crate) fn inspect() -> Vec<Operation> {
    vec![
        read("o", text("o")),
        read("h", text("h")),
        read("t", number("t")),
        read("held", num_sub(vec![now(), number("s")])),
        read("rest", num_sub(vec![number("u"), now()])),
    ]
}

/// Whether the key of a record is held.
pub(crate) fn is_held() -> Expression {
    stands()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_at_least_a_millisecond_and_never_cut_short() {
        assert_eq!(milliseconds(Duration::from_nanos(1)), 1);
        assert_eq!(milliseconds(Duration::from_micros(1_500)), 2);
        assert_eq!(milliseconds(Duration::from_secs(90)), 90_000);
        assert_eq!(milliseconds(Duration::MAX), 9 * 365 * 86_400_000);
    }

    #[test]
    fn a_record_outlives_its_term_by_a_day() {
        assert_eq!(kept(Duration::from_millis(1)), 86_401);
        assert_eq!(kept(Duration::from_secs(90)), 90 + 86_401);
        // What the server accepts at most.
        assert!(kept(Duration::MAX) < 315_360_000);
    }
}
