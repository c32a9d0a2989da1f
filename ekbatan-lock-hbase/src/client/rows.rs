//! Changing rows and reading them, several at a time.
//!
//! Invariants: a change of one row is atomic, and its answer has the row as it was right after it.
//! A request is repeated here if its region had moved or its server was too busy. If one of its
//! requests may have had its effect, a change that fails in the end is in doubt.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ekbatan_lock::{BackendError, FailureKind};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::calls::Client;
use super::error::{CallError, Effect, Meaning, in_doubt};
use super::known_regions::Region;
use super::region::NotFound;
use super::service::{ANSWER, Service};
use crate::messages::data::{
    Action, BinaryComparator, ByteArrayComparable, Cell, Column, ColumnValue, Condition, DELETE,
    DELETE_FAMILY, EQUAL, FilterList, Get, MUST_PASS_ALL, MultiRequest, MultiResponse, Mutation,
    NameBytesPair, Named, PUT, QualifierValue, RegionAction, RegionActionResult, SYNC_WAL,
    SingleColumnValueFilter, TTL,
};

/// The column family of the table.
pub(crate) const FAMILY: &[u8] = b"l";

/// The column with the state of a lock. It is the first one: the server gives a conditional change
/// at least the time of the first cell that it has compared.
pub(crate) const STATE: &[u8] = b"a";

/// The column with the mark that a lease stands.
pub(crate) const MARKER: &[u8] = b"b";

/// The pauses before a request is repeated whose region was not there.
const PAUSES: [u64; 5] = [0, 10, 40, 160, 320];

/// What a row must be for a change to take place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Expected {
    Anything,
    /// No state.
    Absent,
    /// This state.
    State(Vec<u8>),
    /// This state and this mark.
    Marked(Vec<u8>, Vec<u8>),
}

/// A cell to write.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Put {
    pub(crate) qualifier: Vec<u8>,
    pub(crate) value: Vec<u8>,
    /// When the server hides it, if it does.
    pub(crate) term: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change {
    Put(Expected, Vec<Put>),
    /// Deletes the cells that are not younger than this time of the server.
    Delete(Expected, u64),
}

/// A change of a row, if there is one, and then a look at it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RowOp {
    pub(crate) row: Vec<u8>,
    pub(crate) change: Option<Change>,
}

/// A row after its change.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// Whether the row was as expected, and was changed.
    pub(crate) changed: bool,
    pub(crate) cells: Vec<Cell>,
    /// When the request was sent, or earlier.
    pub(crate) asked: Instant,
}

type Answer = Result<Found, BackendError>;

/// The operations at one server, by their place in the request.
struct Group {
    server: String,
    ops: Vec<(usize, Arc<Region>)>,
}

impl Client {
    /// Executes one operation.
    pub(crate) async fn exchange(&self, op: RowOp) -> Answer {
        let answers = self.exchange_all(vec![op]).await;
        // There is an answer for each operation.
        answers.into_iter().next().unwrap_or_else(|| Err(BackendError::in_doubt("HBase")))
    }

    /// Executes several operations, in any order, with one request for each server.
    pub(crate) async fn exchange_all(&self, ops: Vec<RowOp>) -> Vec<Answer> {
        let unasked = || Err(BackendError::unavailable("HBase: it was not asked"));
        let mut answers: Vec<Answer> = ops.iter().map(|_| unasked()).collect();
        let mut pending: Vec<usize> = (0..ops.len()).collect();
        let (mut doubted, until) = (vec![false; ops.len()], Instant::now() + ANSWER);
        for pause in PAUSES {
            // The caller of a server that does not answer waits once, not once for each pause.
            if Instant::now() >= until {
                break;
            }
            if pause > 0 {
                sleep(Duration::from_millis(pause).mul_f64(0.5 + fastrand::f64())).await;
            }
            let groups = self.by_server(&ops, until, &mut pending, &mut answers).await;
            let sent = groups.iter().map(|group| self.send(group, &ops));
            for (group, outcomes) in groups.iter().zip(join_all(sent).await) {
                for ((n, region), outcome) in group.ops.iter().zip(outcomes) {
                    match outcome {
                        Ok(found) => answers[*n] = Ok(found),
                        Err(error) => {
                            if self.comes_again(&error, region) {
                                pending.push(*n);
                            }
                            let effect = match ops[*n].change {
                                Some(_) => Effect::Possible,
                                None => Effect::None,
                            };
                            doubted[*n] |= effect == Effect::Possible && error.leaves_doubt();
                            answers[*n] = Err(error.of(effect));
                        }
                    }
                }
            }
            if pending.is_empty() {
                break;
            }
        }
        let answers = answers.into_iter().zip(doubted);
        answers.map(|(it, doubted)| if doubted { it.map_err(in_doubt) } else { it }).collect()
    }

    /// Whether an operation that failed like this can be repeated now.
    fn comes_again(&self, error: &CallError, region: &Arc<Region>) -> bool {
        match error.meaning() {
            Some(Meaning::Later) => true,
            Some(Meaning::Elsewhere) => {
                self.forget(region);
                true
            }
            Some(_) => false,
            None => {
                // Its server may be gone, and its regions elsewhere.
                self.forget(region);
                matches!(error.last(), CallError::Unreachable { .. })
            }
        }
    }

    /// Sorts the operations that wait by the servers of their regions. Those whose region is not
    /// found stay.
    async fn by_server(
        &self,
        ops: &[RowOp],
        until: Instant,
        pending: &mut Vec<usize>,
        answers: &mut [Answer],
    ) -> Vec<Group> {
        let mut groups = BTreeMap::<String, Group>::new();
        for n in std::mem::take(pending) {
            match self.region(&ops[n].row, until).await {
                Ok(region) => {
                    let server = region.server.clone();
                    let group = groups
                        .entry(server.clone())
                        .or_insert_with(|| Group { server, ops: Vec::new() });
                    group.ops.push((n, region));
                }
                Err(not_found) => {
                    let error = self.not_found(not_found);
                    if error.kind() == FailureKind::Unavailable {
                        pending.push(n);
                    }
                    answers[n] = Err(error);
                }
            }
        }
        groups.into_values().collect()
    }

    pub(super) fn not_found(&self, why: NotFound) -> BackendError {
        let table = self.address().table().name();
        match why {
            NotFound::NoTable => BackendError::new(format!(
                "HBase: the table `{table}` is gone, and all locks with it; restart the \
                 application, which makes it again"
            )),
            NotFound::NotOpen => BackendError::unavailable(format!(
                "HBase: a region of the table `{table}` has no server at present"
            )),
            NotFound::NoAnswer => BackendError::unavailable(format!(
                "HBase: no server said within {ANSWER:?} where a region of the table `{table}` is"
            )),
            NotFound::Failed(error) => error.of(Effect::None),
        }
    }

    async fn send(&self, group: &Group, ops: &[RowOp]) -> Vec<Result<Found, CallError>> {
        let asked = Instant::now();
        let actions = group.ops.iter().flat_map(|(n, region)| actions(&ops[*n], region));
        let request = MultiRequest { region_action: actions.collect() };
        let called = self.call(&group.server, Service::Rows, "Multi", &request).await;
        let answer: MultiResponse = match called {
            Ok(answer) => answer,
            Err(error) => return group.ops.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut results = answer.region_action_result.into_iter();
        let outcome = |(n, _): &(usize, Arc<Region>)| {
            let changed = match &ops[*n].change {
                Some(change) => changed(change, results.next().unwrap_or_default(), &group.server),
                None => Ok(false),
            };
            // Both are taken from the results, whatever the first one says.
            let cells = looked(results.next().unwrap_or_default(), &group.server);
            found(changed, cells, asked)
        };
        group.ops.iter().map(outcome).collect()
    }
}

/// The answer to a change and the look after it.
fn found(
    changed: Result<bool, CallError>,
    cells: Result<Vec<Cell>, CallError>,
    asked: Instant,
) -> Result<Found, CallError> {
    match (changed?, cells) {
        (changed, Ok(cells)) => Ok(Found { changed, cells, asked }),
        (true, Err(error)) => Err(CallError::AfterEffect(Box::new(error))),
        (false, Err(error)) => Err(error),
    }
}

/// The change and the look. The server executes them in this order.
fn actions(op: &RowOp, region: &Region) -> impl Iterator<Item = RegionAction> + use<> {
    let change = op.change.as_ref().map(|change| {
        let (expected, mutations) = match change {
            Change::Put(expected, puts) => (expected, puts.iter().map(|it| put(op, it)).collect()),
            Change::Delete(expected, until) => (expected, vec![deletion(op, *until)]),
        };
        let condition = condition(&op.row, expected);
        RegionAction {
            region: region.specifier(),
            atomic: Some(condition.is_some()),
            action: mutations.into_iter().zip(0..).map(|(it, n)| mutation(n, it)).collect(),
            condition,
        }
    });
    let column = vec![Column { family: FAMILY.to_vec(), qualifier: Vec::new() }];
    let get = Get { row: op.row.clone(), column };
    let look = RegionAction {
        region: region.specifier(),
        atomic: None,
        action: vec![Action { index: Some(0), mutation: None, get: Some(get) }],
        condition: None,
    };
    change.into_iter().chain([look])
}

fn mutation(n: u32, mutation: Mutation) -> Action {
    Action { index: Some(n), mutation: Some(mutation), get: None }
}

fn put(op: &RowOp, put: &Put) -> Mutation {
    let value = QualifierValue {
        qualifier: Some(put.qualifier.clone()),
        value: Some(put.value.clone()),
        ..Default::default()
    };
    let ttl = put.term.map(|term| NameBytesPair {
        name: TTL.to_owned(),
        value: Some(milliseconds(term).to_be_bytes().to_vec()),
    });
    let column_value = ColumnValue { family: FAMILY.to_vec(), qualifier_value: vec![value] };
    Mutation {
        row: Some(op.row.clone()),
        mutate_type: Some(PUT),
        column_value: vec![column_value],
        attribute: ttl.into_iter().collect(),
        durability: Some(SYNC_WAL),
    }
}

/// A deletion up to a time of the past leaves no mark that hides what is written later.
fn deletion(op: &RowOp, until: u64) -> Mutation {
    let value = QualifierValue {
        timestamp: Some(until),
        delete_type: Some(DELETE_FAMILY),
        ..Default::default()
    };
    let column_value = ColumnValue { family: FAMILY.to_vec(), qualifier_value: vec![value] };
    Mutation {
        row: Some(op.row.clone()),
        mutate_type: Some(DELETE),
        column_value: vec![column_value],
        attribute: Vec::new(),
        durability: Some(SYNC_WAL),
    }
}

/// Whole milliseconds, rounded up: a key must not be free earlier than its holder expects. The
/// server adds them to a time, which must not overflow.
pub(crate) fn milliseconds(term: Duration) -> u64 {
    /// About 31 years.
    const MAX: u64 = 1_000_000_000_000;
    let whole = term.as_nanos().div_ceil(1_000_000);
    u64::try_from(whole).unwrap_or(MAX).clamp(1, MAX)
}

fn condition(row: &[u8], expected: &Expected) -> Option<Condition> {
    let state = |value: &[u8]| Condition {
        row: row.to_vec(),
        family: Some(FAMILY.to_vec()),
        qualifier: Some(STATE.to_vec()),
        compare_type: Some(EQUAL),
        comparator: Some(comparator(value)),
        filter: None,
    };
    match expected {
        Expected::Anything => None,
        // A cell that is not there equals an empty value.
        Expected::Absent => Some(state(&[])),
        Expected::State(value) => Some(state(value)),
        Expected::Marked(value, mark) => {
            let filters = vec![has(STATE, value), has(MARKER, mark)];
            let all = FilterList { operator: MUST_PASS_ALL, filters };
            Some(Condition {
                row: row.to_vec(),
                filter: Some(named("org.apache.hadoop.hbase.filter.FilterList", &all)),
                ..Default::default()
            })
        }
    }
}

fn has(qualifier: &[u8], value: &[u8]) -> Named {
    let filter = SingleColumnValueFilter {
        column_family: Some(FAMILY.to_vec()),
        column_qualifier: Some(qualifier.to_vec()),
        compare_op: EQUAL,
        comparator: comparator(value),
        filter_if_missing: Some(true),
        latest_version_only: Some(true),
    };
    named("org.apache.hadoop.hbase.filter.SingleColumnValueFilter", &filter)
}

fn comparator(value: &[u8]) -> Named {
    let comparable = ByteArrayComparable { value: Some(value.to_vec()) };
    named("org.apache.hadoop.hbase.filter.BinaryComparator", &BinaryComparator { comparable })
}

fn named(name: &str, message: &impl prost::Message) -> Named {
    Named { name: name.to_owned(), serialized: Some(message.encode_to_vec()) }
}

/// Whether a row was changed.
fn changed(change: &Change, result: RegionActionResult, server: &str) -> Result<bool, CallError> {
    let failed = result.result_or_exception.into_iter().find_map(|it| it.exception);
    if let Some(exception) = result.exception.or(failed) {
        return Err(exception_of(exception, server));
    }
    let unconditional = matches!(change, Change::Put(Expected::Anything, _));
    Ok(unconditional || result.processed == Some(true))
}

/// The cells of a row.
fn looked(result: RegionActionResult, server: &str) -> Result<Vec<Cell>, CallError> {
    if let Some(exception) = result.exception {
        return Err(exception_of(exception, server));
    }
    let Some(one) = result.result_or_exception.into_iter().next() else {
        let why = "the answer lacks a row".to_owned();
        return Err(CallError::Cut { server: server.to_owned(), why });
    };
    match one.exception {
        Some(exception) => Err(exception_of(exception, server)),
        None => Ok(one.result.unwrap_or_default().cell),
    }
}

fn exception_of(exception: NameBytesPair, server: &str) -> CallError {
    CallError::Exception {
        server: server.to_owned(),
        class: exception.name,
        text: String::from_utf8_lossy(&exception.value.unwrap_or_default()).into_owned(),
        final_: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_whose_look_failed_may_have_had_its_effect() {
        let moved = CallError::Exception {
            server: "a:1".to_owned(),
            class: "org.apache.hadoop.hbase.NotServingRegionException".to_owned(),
            text: String::new(),
            final_: false,
        };
        let kind = |changed| {
            let failed = found(changed, Err(moved.clone()), Instant::now()).unwrap_err();
            assert_eq!(failed.meaning(), Some(Meaning::Elsewhere), "it is repeated");
            failed.of(Effect::Possible).kind()
        };
        assert_eq!(kind(Ok(true)), FailureKind::InDoubt);
        assert_eq!(kind(Ok(false)), FailureKind::Unavailable);
        assert_eq!(kind(Err(moved.clone())), FailureKind::Unavailable);
    }
}
