//! Transactions of the server, and their answers.
//!
//! Every transaction also reads the epoch, so that a token is never counted from an old one.

use std::collections::VecDeque;

use ekbatan_lock::BackendError;

use crate::answer::Effect;
use crate::client::Client;
use crate::messages::{
    ASCENDING, BY_CREATION, Compare, DESCENDING, DeleteRequest, Expected, KeyValue, PutRequest,
    RangeRequest, RangeResponse, Request, RequestOp, Response, Target, TxnRequest, TxnResponse,
};
use crate::names::Folder;

/// What to do, and under which conditions.
#[derive(Default)]
pub(super) struct Transaction {
    compare: Vec<Compare>,
    requests: Vec<Request>,
    otherwise: Vec<Request>,
}

/// The answers to the requests of a transaction, in order.
pub(super) struct Answer {
    /// Whether the conditions held.
    pub(super) succeeded: bool,
    /// The revision of the server's data afterwards.
    pub(super) revision: i64,
    /// The number that tokens of these data are counted from; zero until it is read from the answer.
    pub(super) epoch: i64,
    responses: VecDeque<Response>,
}

impl Transaction {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Only if the folder has no key.
    pub(super) fn if_empty(mut self, folder: &Folder) -> Self {
        // A comparison with a range holds if it holds for each of its keys; and an empty range
        // is compared as a key that was never created.
        self.compare.push(Compare {
            result: 0,
            target: Target::Created as i32,
            key: folder.first.clone(),
            expected: Some(Expected::CreateRevision(0)),
            range_end: folder.end.clone(),
        });
        self
    }

    /// Only if the key was created at this revision; zero stands for a key that does not exist.
    pub(super) fn if_created(self, key: &[u8], revision: i64) -> Self {
        self.condition(key, Target::Created, Expected::CreateRevision(revision))
    }

    /// Only if the key was last written at this revision.
    pub(super) fn if_modified(self, key: &[u8], revision: i64) -> Self {
        self.condition(key, Target::Modified, Expected::ModRevision(revision))
    }

    fn condition(mut self, key: &[u8], target: Target, expected: Expected) -> Self {
        self.compare.push(Compare {
            result: 0,
            target: target as i32,
            key: key.to_vec(),
            expected: Some(expected),
            range_end: Vec::new(),
        });
        self
    }

    fn request(mut self, request: Request) -> Self {
        self.requests.push(request);
        self
    }

    /// Reads one key.
    pub(super) fn get(self, key: &[u8]) -> Self {
        self.request(Request::Range(RangeRequest { key: key.to_vec(), ..Default::default() }))
    }

    /// Reads the key of a folder that was created first.
    pub(super) fn first(self, folder: &Folder) -> Self {
        self.request(Request::Range(RangeRequest {
            limit: 1,
            sort_order: ASCENDING,
            sort_target: BY_CREATION,
            ..range(folder)
        }))
    }

    /// Reads the last key of a folder that was created before this revision.
    pub(super) fn last_before(self, folder: &Folder, revision: i64) -> Self {
        self.request(Request::Range(RangeRequest {
            limit: 1,
            sort_order: DESCENDING,
            sort_target: BY_CREATION,
            max_create_revision: revision - 1,
            ..range(folder)
        }))
    }

    /// Counts the keys of a folder.
    pub(super) fn count(self, folder: &Folder) -> Self {
        self.request(Request::Range(RangeRequest { count_only: true, ..range(folder) }))
    }

    /// Reads at most `most` keys of a range, in the order of their names.
    pub(super) fn page(self, first: Vec<u8>, end: Vec<u8>, most: i64) -> Self {
        self.request(Request::Range(RangeRequest { limit: most, ..range(&Folder { first, end }) }))
    }

    /// Writes a key that ends with the lease.
    pub(super) fn put(self, key: Vec<u8>, value: &str, lease: i64) -> Self {
        let value = value.as_bytes().to_vec();
        self.request(Request::Put(PutRequest { key, value, lease, ..Default::default() }))
    }

    /// Attaches a key to another lease.
    pub(super) fn attach(self, key: &[u8], lease: i64) -> Self {
        self.request(Request::Put(PutRequest {
            key: key.to_vec(),
            lease,
            prev_kv: true,
            ignore_value: true,
            ..Default::default()
        }))
    }

    /// Removes a key.
    pub(super) fn remove(self, key: &[u8]) -> Self {
        self.request(Request::Delete(DeleteRequest { key: key.to_vec(), prev_kv: true }))
    }

    /// What to do if the conditions do not hold.
    pub(super) fn otherwise(mut self, other: Transaction) -> Self {
        self.otherwise = other.requests;
        self
    }

    /// The first answer is the epoch.
    pub(super) async fn send(
        self,
        client: &Client,
        epoch: &[u8],
        effect: Effect,
    ) -> Result<Answer, BackendError> {
        let operations = |requests: Vec<Request>| {
            let epoch = Request::Range(RangeRequest { key: epoch.to_vec(), ..Default::default() });
            let all = std::iter::once(epoch).chain(requests);
            all.map(|request| RequestOp { request: Some(request) }).collect()
        };
        let request = TxnRequest {
            compare: self.compare,
            success: operations(self.requests),
            failure: operations(self.otherwise),
        };
        let answer = client.call("/etcdserverpb.KV/Txn", request).await;
        let answer: TxnResponse = answer.map_err(|error| error.of(effect))?;
        let responses = answer.responses.into_iter().filter_map(|it| it.response).collect();
        let revision = answer.header.map_or(0, |header| header.revision);
        Ok(Answer { succeeded: answer.succeeded, revision, epoch: 0, responses })
    }
}

fn range(folder: &Folder) -> RangeRequest {
    RangeRequest { key: folder.first.clone(), range_end: folder.end.clone(), ..Default::default() }
}

impl Answer {
    /// The token of a place that was made at a revision.
    pub(super) fn token(&self, created: i64) -> i64 {
        self.epoch.saturating_add(created)
    }

    fn range(&mut self) -> Result<RangeResponse, BackendError> {
        match self.responses.pop_front() {
            Some(Response::Range(range)) => Ok(range),
            _ => Err(unexpected()),
        }
    }

    /// The keys that the next request has read.
    pub(super) fn keys(&mut self) -> Result<Vec<KeyValue>, BackendError> {
        Ok(self.range()?.kvs)
    }

    /// The keys that the next request has read, and whether there are more.
    pub(super) fn page(&mut self) -> Result<(Vec<KeyValue>, bool), BackendError> {
        let range = self.range()?;
        Ok((range.kvs, range.more))
    }

    /// The number of keys that the next request has counted.
    pub(super) fn count(&mut self) -> Result<i64, BackendError> {
        Ok(self.range()?.count)
    }

    /// The key that the next request has overwritten.
    pub(super) fn replaced(&mut self) -> Result<Option<KeyValue>, BackendError> {
        match self.responses.pop_front() {
            Some(Response::Put(put)) => Ok(put.prev_kv),
            _ => Err(unexpected()),
        }
    }

    /// The key that the next request has removed.
    pub(super) fn removed(&mut self) -> Result<Option<KeyValue>, BackendError> {
        match self.responses.pop_front() {
            Some(Response::Delete(removed)) => Ok(removed.prev_kvs.into_iter().next()),
            _ => Err(unexpected()),
        }
    }

    /// Leaves out the answer to the next request.
    pub(super) fn skip(&mut self) {
        self.responses.pop_front();
    }
}

fn unexpected() -> BackendError {
    BackendError::in_doubt(
        "etcd: an answer does not fit its request; is this an etcd 3.4 or newer?",
    )
}
