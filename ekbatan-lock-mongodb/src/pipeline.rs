//! The expressions with which the server itself decides about the document of a key.
//!
//! A document: `owner`, `holder`, `token`, `since` and `until` of the last grant; `waiters`, the
//! acquisitions that wait, in the order in which they came; `gone`, those that gave up and may
//! still be on their way; `stood`, whether the last change that named a grant found it standing;
//! `forget`, from when on the document may be deleted. The entries of both lists end at `u`.
//!
//! Invariants: every time is `$$NOW`, the clock of the server. A token only grows. A key with a
//! waiter that lives is granted to nobody else.

use std::time::Duration;

use ekbatan_lock::GrantRequest;
use mongodb::bson::{Bson, DateTime, Document, doc};
use uuid::Uuid;

/// How long a waiter to which a key was passed on may take to confirm that it is there.
pub(crate) const CONFIRM: Duration = Duration::from_secs(2);

/// How long a waiter keeps its place without a sign of life.
pub(crate) const PLACE: Duration = Duration::from_secs(6);

/// Maximum time until a try that was given up reaches the server.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// The number of tries that were given up and are kept in mind for one key.
const GONE: i32 = 16;

/// How long a key that nobody uses is remembered. By then the clock alone gives greater tokens.
const REMEMBERED: Duration = Duration::from_secs(86_400);

const NOW: &str = "$$NOW";

/// A longer term is of no use, and could not be added to the time.
const LONGEST: u64 = 100 * 365 * 86_400_000;

/// Rounded up, and at least one: a key must not be free earlier than its holder expects.
pub(crate) fn milliseconds(duration: Duration) -> i64 {
    let whole = u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(LONGEST);
    i64::try_from(whole.clamp(1, LONGEST)).unwrap_or(i64::MAX)
}

/// The time that is so far away.
fn in_time(duration: Duration) -> Bson {
    doc! { "$add": [NOW, milliseconds(duration)] }.into()
}

/// A text that is no expression.
fn text(text: &str) -> Bson {
    doc! { "$literal": text }.into()
}

/// Whether the grant of the document stands.
fn stands() -> Document {
    doc! { "$gt": ["$until", NOW] }
}

/// Greater than the last token, and at least the clock, so that tokens grow even if the document
/// was lost.
fn next_token() -> Bson {
    let after_last = doc! { "$add": [{ "$ifNull": ["$token", 0_i64] }, 1_i64] };
    doc! { "$max": [after_last, { "$toLong": NOW }] }.into()
}

fn first_waiter(field: &str) -> Bson {
    let first = doc! { "$arrayElemAt": ["$waiters", 0] };
    doc! { "$let": { "vars": { "first": first }, "in": format!("$$first.{field}") } }.into()
}

fn other_waiters() -> Bson {
    doc! { "$slice": ["$waiters", 1, i32::MAX] }.into()
}

/// The waiters without one of them.
fn waiters_without(owner: &Bson) -> Bson {
    let condition = doc! { "$ne": ["$$entry.o", owner.clone()] };
    doc! { "$filter": { "input": "$waiters", "as": "entry", "cond": condition } }.into()
}

fn set(fields: Document) -> Bson {
    doc! { "$set": fields }.into()
}

/// Drops the entries that have ended. Everything else comes after it.
fn living() -> Bson {
    let living = |list: &str| {
        let entries = doc! { "$ifNull": [list, []] };
        let lives = doc! { "$gt": ["$$entry.u", NOW] };
        doc! { "$filter": { "input": entries, "as": "entry", "cond": lives } }
    };
    set(doc! { "waiters": living("$waiters"), "gone": living("$gone") })
}

/// Says from when on the document may be deleted. Everything else comes before it.
fn remember() -> Bson {
    let last = doc! { "$max": ["$until", { "$toDate": "$token" }, NOW] };
    set(doc! { "forget": { "$add": [last, milliseconds(REMEMBERED)] } })
}

/// What a try comes to: `again` if it was granted before and its answer was lost, or if the key
/// was passed on to it; `mine` if the key is free; `pass` if it is free and another waits.
fn outcome(owner: &Bson) -> Document {
    let first = doc! { "$ifNull": [first_waiter("o"), owner.clone()] };
    let cases = doc! { "branches": [
        { "case": { "$in": [owner.clone(), "$gone.o"] }, "then": "gone" },
        { "case": { "$and": [stands(), { "$eq": ["$owner", owner.clone()] }] }, "then": "again" },
        { "case": stands(), "then": "busy" },
        { "case": { "$eq": [first, owner.clone()] }, "then": "mine" },
    ], "default": "pass" };
    doc! { "outcome": { "$switch": cases } }
}

/// The value of a field by the outcome of a try.
fn by_outcome(mine: Bson, pass: Bson, again: Bson, otherwise: &str) -> Document {
    let case = |name: &str, then| doc! { "case": { "$eq": ["$outcome", name] }, "then": then };
    let branches = vec![case("mine", mine), case("pass", pass), case("again", again)];
    doc! { "$switch": { "branches": branches, "default": otherwise } }
}

/// Takes the key if it is free or was passed on to this acquisition. If others wait for a key
/// that is free, the first of them gets it. An acquisition that waits gets a place.
pub(crate) fn take(request: &GrantRequest) -> Vec<Bson> {
    let (owner, holder) = (text(&request.owner.to_string()), text(&request.holder));
    let (term, confirm) = (in_time(request.term), in_time(CONFIRM));
    // A try that comes once more, after its lease was extended, must not shorten the term.
    let longer = doc! { "$max": ["$until", term.clone()] };
    let is_served = doc! { "$in": ["$outcome", ["mine", "again"]] };
    let others = doc! { "$cond": [
        { "$eq": ["$outcome", "pass"] }, other_waiters(), "$waiters",
    ] };
    let now = || Bson::from(NOW);
    let field = |name: &str| Bson::from(name);
    let mut steps = vec![
        living(),
        set(outcome(&owner)),
        set(doc! {
            "owner": by_outcome(owner.clone(), first_waiter("o"), field("$owner"), "$owner"),
            "holder": by_outcome(holder.clone(), first_waiter("h"), holder.clone(), "$holder"),
            "token": by_outcome(next_token(), next_token(), field("$token"), "$token"),
            "since": by_outcome(now(), now(), field("$since"), "$since"),
            "until": by_outcome(term, confirm, longer.into(), "$until"),
            "waiters": { "$cond": [is_served, waiters_without(&owner), others] },
        }),
    ];
    if request.waits {
        let waits = doc! { "$in": ["$outcome", ["busy", "pass"]] };
        let has_place = doc! { "$in": [owner.clone(), "$waiters.o"] };
        let place = doc! { "o": owner.clone(), "h": holder, "u": in_time(PLACE) };
        let with_place = doc! { "$concatArrays": ["$waiters", [place]] };
        let placed = doc! { "$cond": [has_place, renewed(&owner), with_place] };
        steps.push(set(doc! { "waiters": { "$cond": [waits, placed, "$waiters"] } }));
    }
    steps.push(remember());
    steps.push(doc! { "$unset": "outcome" }.into());
    steps
}

/// The waiters, of which one has given a sign of life.
fn renewed(owner: &Bson) -> Bson {
    let renewed = doc! { "$mergeObjects": ["$$entry", { "u": in_time(PLACE) }] };
    let each = doc! { "$cond": [
        { "$eq": ["$$entry.o", owner.clone()] }, renewed, "$$entry",
    ] };
    doc! { "$map": { "input": "$waiters", "as": "entry", "in": each } }.into()
}

/// Renews the place of an acquisition that waits. It gives no place to one that has none.
pub(crate) fn renew_place(owner: Uuid) -> Vec<Bson> {
    let owner = text(&owner.to_string());
    vec![living(), set(doc! { "waiters": renewed(&owner) }), remember()]
}

/// Notes whether the grant stands. The steps after it change the grant only then, and the answer
/// says it.
///
/// A filter could say the same. But FerretDB evaluates `$$NOW` in a filter wrongly, and without an
/// error, as soon as the collection has an index of its own.
fn note(stood: Document) -> Bson {
    set(doc! { "stood": stood })
}

/// A field that changes only if the grant stood.
fn if_stood(then: Bson, field: &str) -> Document {
    doc! { "$cond": ["$stood", then, field] }
}

/// Passes the key on to the first that waits, for a short time in which it has to confirm, if the
/// grant stood. `uses_up` a token: that of a grant ended by force must be smaller than the next.
fn passed_on(uses_up: bool) -> Bson {
    let is_wanted = doc! { "$gt": [{ "$size": "$waiters" }, 0] };
    let by =
        |wanted: Bson, free: Bson| Bson::from(doc! { "$cond": [is_wanted.clone(), wanted, free] });
    let free_token = if uses_up { next_token() } else { "$token".into() };
    let free_until = DateTime::from_millis(0).into();
    set(doc! {
        "owner": if_stood(by(first_waiter("o"), Bson::Null), "$owner"),
        "holder": if_stood(by(first_waiter("h"), Bson::Null), "$holder"),
        "token": if_stood(by(next_token(), free_token), "$token"),
        "since": if_stood(NOW.into(), "$since"),
        "until": if_stood(by(in_time(CONFIRM), free_until), "$until"),
        "waiters": if_stood(other_waiters(), "$waiters"),
    })
}

/// Ends the grant if it stands.
pub(crate) fn release() -> Vec<Bson> {
    vec![living(), note(stands()), passed_on(false), remember()]
}

/// Ends the grant if it stands, and uses up a token.
pub(crate) fn force() -> Vec<Bson> {
    vec![living(), note(stands()), passed_on(true), remember()]
}

/// Makes the grant last for at least this term from now if it stands. It may be carried out late, after
/// a later one. So it never shortens a term.
pub(crate) fn extend(term: Duration) -> Vec<Bson> {
    last_until(doc! { "$max": ["$until", in_time(term)] }.into())
}

/// Makes the grant last for this term from now if it stands.
pub(crate) fn set_term(term: Duration) -> Vec<Bson> {
    last_until(in_time(term))
}

fn last_until(until: Bson) -> Vec<Bson> {
    vec![note(stands()), set(doc! { "until": if_stood(until, "$until") }), remember()]
}

/// Ends the grant of an acquisition whose answer was lost, if there is one, takes its place away,
/// and refuses it should it arrive later.
pub(crate) fn give_up(owner: Uuid) -> Vec<Bson> {
    let owner = text(&owner.to_string());
    let stood = doc! { "$and": [stands(), { "$eq": ["$owner", owner.clone()] }] };
    let gone = doc! { "o": owner.clone(), "u": in_time(MAX_DELAY) };
    let gone = doc! { "$slice": [{ "$concatArrays": ["$gone", [gone]] }, -GONE] };
    let left = set(doc! { "waiters": waiters_without(&owner), "gone": gone });
    vec![living(), note(stood), left, passed_on(false), remember()]
}

/// The fields that waiters look at: the rest of the grant, and of each place.
pub(crate) fn looked_at() -> Document {
    let rest = doc! { "$subtract": ["$$entry.u", "$$NOW"] };
    let places = doc! { "$map": {
        "input": { "$ifNull": ["$waiters", []] },
        "as": "entry",
        "in": { "o": "$$entry.o", "rest": rest },
    } };
    doc! {
        "owner": 1,
        "token": 1,
        "remaining": { "$subtract": ["$until", "$$NOW"] },
        "places": places,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_at_least_a_millisecond_and_never_cut_short() {
        assert_eq!(milliseconds(Duration::from_nanos(1)), 1);
        assert_eq!(milliseconds(Duration::from_micros(1_500)), 2);
        assert_eq!(milliseconds(Duration::from_secs(90)), 90_000);
        assert_eq!(milliseconds(Duration::MAX), 100 * 365 * 86_400_000);
    }

    #[test]
    fn what_a_caller_names_is_no_expression() {
        let term = Duration::from_secs(1);
        let request = GrantRequest::new(Uuid::new_v4(), "$a_holder", term).waiting();
        let steps = Bson::Array(take(&request)).to_string().replace(' ', "");
        let literals = steps.matches(r#"{"$literal":"$a_holder"}"#).count();
        assert!(literals > 0, "{steps}");
        assert_eq!(steps.matches("$a_holder").count(), literals, "{steps}");
    }
}
