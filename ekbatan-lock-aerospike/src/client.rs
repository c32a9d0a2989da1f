//! The client of the cluster, and the time in which it has to answer.
//!
//! Invariants: a request is sent once, because only the caller knows whether it may be repeated.
//! A request that gets no connection in time was not sent, and had no effect. If no answer comes in
//! time, the request fails; if no other request got one either, later ones use new connections. A
//! client that is closed or dropped leaves no task behind, and stays closed.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aerospike::expressions::Expression;
use aerospike::operations::Operation;
use aerospike::policy::{
    AdminPolicy, BasePolicy, BatchPolicy, QueryPolicy, ReadModeAp, ReadModeSc, Replica,
};
use aerospike::{
    BatchOperation, Bins, Client, ClientPolicy, CommitLevel, ErrorKind, Expiration, Key,
    PartitionFilter, Record, RecordExistsAction, Statement, Value, WritePolicy,
};
use async_trait::async_trait;
use ekbatan_lock::{BackendError, ClientFactory, CurrentClient, FailureKind, LockError};
use futures_util::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep, timeout};

use crate::address::{ANSWER, ANSWER_MILLIS, Address};
use crate::answer::{failed, is_answer, is_left_out};
use crate::in_runtime::InRuntime;

/// How long to wait for a connection that is being opened before asking for it again.
const OPENING: Duration = Duration::from_millis(1);

/// After this time the client has failed to end a request by itself. Until then it knows whether it has
/// sent the request.
const OVERDUE: Duration = ANSWER.saturating_add(Duration::from_secs(1));

pub(crate) struct Commands {
    client: CurrentClient<Cluster>,
    namespace: String,
    set: String,
    /// Whether the namespace is strongly consistent. Others refuse reads that ask for it.
    is_consistent: AtomicBool,
}

/// How clients of the cluster are opened.
struct Cluster {
    hosts: String,
    policy: ClientPolicy,
}

#[async_trait]
impl ClientFactory for Cluster {
    type Client = Arc<Client>;
    const SERVER: &'static str = "Aerospike";
    const ANSWER: Duration = ANSWER;

    async fn connect(&self) -> Result<Arc<Client>, BackendError> {
        match timeout(ANSWER, Client::new(&self.policy, &self.hosts)).await {
            Ok(Ok(client)) => Ok(Arc::new(client)),
            Ok(Err(error)) => Err(failed(&error)),
            Err(_) => Err(silent(ANSWER)),
        }
    }

    /// A client that is not closed would keep its task and its connections.
    async fn disconnect(client: Arc<Client>) {
        if let Err(error) = client.close().await {
            tracing::debug!(%error, "the client of Aerospike did not close in order");
        }
    }
}

/// When a write is allowed, and how long its record is kept.
pub(crate) struct Write {
    pub(crate) filter: Option<Expression>,
    pub(crate) record: RecordExistsAction,
    pub(crate) kept: Expiration,
}

impl Commands {
    pub(crate) async fn connect(address: Address, set: String) -> Result<Self, LockError> {
        let Address { hosts, namespace, policy } = address;
        let connections = policy.max_conns_per_node;
        let client = CurrentClient::open(Cluster { hosts, policy }, connections).await;
        let client = client.map_err(|source| LockError::Start { source })?;
        Ok(Self { client, namespace, set, is_consistent: AtomicBool::new(false) })
    }

    /// Notes that the namespace is strongly consistent.
    pub(crate) fn set_consistent(&self) {
        self.is_consistent.store(true, Ordering::Release);
    }

    /// The policy of every request. Only the master of a record knows its last grant.
    fn base(&self, filter: Option<Expression>) -> BasePolicy {
        let is_consistent = self.is_consistent.load(Ordering::Acquire);
        BasePolicy {
            replica: Replica::Master,
            read_mode_ap: ReadModeAp::All,
            read_mode_sc: if is_consistent { ReadModeSc::Linearize } else { ReadModeSc::Session },
            socket_timeout: ANSWER_MILLIS,
            total_timeout: ANSWER_MILLIS,
            max_retries: 0,
            filter_expression: filter,
            ..BasePolicy::default()
        }
    }

    fn policy(&self, write: Write) -> WritePolicy {
        WritePolicy {
            base_policy: self.base(write.filter),
            record_exists_action: write.record,
            commit_level: CommitLevel::CommitAll,
            expiration: write.kept,
            respond_per_each_op: true,
            ..WritePolicy::default()
        }
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(crate) fn set(&self) -> &str {
        &self.set
    }

    fn key(&self, key: &str) -> Result<Key, BackendError> {
        let key = Value::String(key.to_owned());
        Key::new(self.namespace(), self.set(), key).map_err(|error| failed(&error))
    }

    /// Writes the record of a key. `None` if the filter did not hold, or if there is no such record or
    /// already one.
    pub(crate) async fn write(
        &self,
        key: &str,
        write: Write,
        operations: &[Operation],
    ) -> Result<Option<Record>, BackendError> {
        let (key, policy) = (self.key(key)?, self.policy(write));
        let (key, policy) = (&key, &policy);
        let send =
            |client: Arc<Client>| async move { client.operate(policy, key, operations).await };
        match self.answer(send).await? {
            Ok(record) => Ok(Some(record)),
            Err(error) if is_left_out(&error) => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Reads the record of a key, if there is one.
    pub(crate) async fn read(
        &self,
        key: &str,
        operations: &[Operation],
    ) -> Result<Option<Record>, BackendError> {
        let record = RecordExistsAction::UpdateOnly;
        let nothing = Write { filter: None, record, kept: Expiration::DontUpdate };
        self.write(key, nothing, operations).await
    }

    /// Sends operations on several records together. A record that was left out has none.
    pub(crate) async fn batch(
        &self,
        operations: Vec<BatchOperation>,
    ) -> Result<Vec<BatchOperation>, BackendError> {
        let policy = BatchPolicy { base_policy: self.base(None), ..BatchPolicy::default() };
        let (policy, operations) = (&policy, &operations);
        let send = |client: Arc<Client>| async move {
            let mut operations = operations.clone();
            client.batch(policy, &mut operations).await.map(|()| operations)
        };
        self.answer(send).await?.map_err(|error| failed(&error))
    }

    pub(crate) fn batch_key(&self, key: &str) -> Result<Key, BackendError> {
        self.key(key)
    }

    /// The texts in one bin of all records for which the filter holds.
    pub(crate) async fn scan(
        &self,
        bin: &str,
        filter: Expression,
    ) -> Result<Vec<String>, BackendError> {
        let mut policy = QueryPolicy::default();
        policy.base_policy.filter_expression = Some(filter);
        policy.base_policy.total_timeout = ANSWER_MILLIS;
        let statement = Statement::new(self.namespace(), self.set(), Bins::from([bin]));
        let client = self.client.client()?;
        let scanning = async {
            let found = client.query(&policy, PartitionFilter::all(), statement).await?;
            let (mut stream, mut texts) = (found.into_stream(), Vec::new());
            while let Some(record) = stream.next().await {
                if let Some(Value::String(text)) = record?.bins.get(bin) {
                    texts.push(text.clone());
                }
            }
            Ok(texts)
        };
        match timeout(ANSWER, self.in_runtime(scanning)).await {
            Ok(texts) => texts?.map_err(|error| failed(&error)),
            Err(_) => Err(silent(ANSWER)),
        }
    }

    /// Information about the namespace, from each node: its name, and pairs of names and values.
    pub(crate) async fn about_namespace(&self) -> Result<Vec<(String, String)>, BackendError> {
        let client = self.client.client()?;
        let command = format!("namespace/{}", self.namespace());
        let asking = async {
            let mut answers = Vec::new();
            for node in client.nodes() {
                let answer = node.info(&AdminPolicy::default(), &[&command]).await?;
                let text = answer.get(&command).cloned().unwrap_or_default();
                answers.push((node.name().to_owned(), text));
            }
            Ok(answers)
        };
        match timeout(ANSWER, self.in_runtime(asking)).await {
            Ok(answers) => answers?.map_err(|error| failed(&error)),
            Err(_) => Err(silent(ANSWER)),
        }
    }

    /// Works in the runtime of the client. If that ends meanwhile, the timers of the work panic, and a
    /// request may have been sent by then.
    async fn in_runtime<F: Future>(&self, work: F) -> Result<F::Output, BackendError> {
        let work = InRuntime::new(self.client.runtime().clone(), work);
        match AssertUnwindSafe(work).catch_unwind().await {
            Ok(output) => Ok(output),
            Err(panic) => match self.client.check_runtime() {
                Ok(()) => resume_unwind(panic),
                Err(ended) => Err(ended.of_kind(FailureKind::InDoubt)),
            },
        }
    }

    /// Sends a request, and again only if there was no connection yet to send it over.
    async fn answer<T, F: Future<Output = aerospike::Result<T>>>(
        &self,
        send: impl Fn(Arc<Client>) -> F,
    ) -> Result<aerospike::Result<T>, BackendError> {
        let request = self.client.for_request().await?;
        let client = request.client();
        let began = Instant::now();
        let sending = async {
            loop {
                match send(client.clone()).await {
                    // Another one is being opened.
                    Err(error)
                        if matches!(error.kind(), ErrorKind::ConnectionPoolEmpty)
                            && began.elapsed() < ANSWER =>
                    {
                        sleep(OPENING).await;
                    }
                    answer => return answer,
                }
            }
        };
        match timeout(OVERDUE, self.in_runtime(sending)).await {
            Ok(answer) => {
                let answer = answer?;
                match &answer {
                    Err(error) if !is_answer(error) => {
                        if error.is_client_timeout() {
                            self.client.unanswered(&request);
                        }
                    }
                    _ => self.client.answered(&request),
                }
                Ok(answer)
            }
            Err(_) => {
                self.client.unanswered(&request);
                Err(silent(OVERDUE))
            }
        }
    }

    /// Closes all connections. Later requests fail.
    pub(crate) async fn close(&self) {
        self.client.close().await;
    }
}

fn silent(limit: Duration) -> BackendError {
    BackendError::in_doubt(format!("Aerospike did not answer within {limit:?}"))
}

#[cfg(test)]
mod tests;
