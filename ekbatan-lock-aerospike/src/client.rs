//! The client of the cluster, and the time in which it has to answer.
//!
//! Invariants: a request is sent once, because only the caller knows whether it may be repeated.
//! A request that gets no connection in time was not sent, and had no effect. If no answer comes in
//! time, the request fails; if no other request got one either, later ones use new connections. A
//! client that is closed or dropped leaves no task behind, and stays closed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aerospike::expressions::Expression;
use aerospike::operations::Operation;
use aerospike::policy::{
    AdminPolicy, BasePolicy, BatchPolicy, QueryPolicy, ReadModeAp, ReadModeSc, Replica,
};
use aerospike::{
    BatchOperation, Bins, Client, CommitLevel, ErrorKind, Expiration, Key, PartitionFilter, Record,
    RecordExistsAction, Statement, Value, WritePolicy,
};
use ekbatan_lock::{BackendError, LockError};
use futures_util::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use crate::address::{ANSWER, ANSWER_MILLIS, Address};
use crate::answer::{failed, is_answer, is_left_out};

/// How long to wait for a connection that is being opened before asking for it again.
const OPENING: Duration = Duration::from_millis(1);

pub(crate) struct Commands {
    shared: Arc<Shared>,
}

struct Shared {
    address: Address,
    set: String,
    current: Mutex<Current>,
    /// One permit for each connection to a node. Closed with the client.
    permits: Semaphore,
    /// Whether the namespace is strongly consistent. Others refuse reads that ask for it.
    is_consistent: AtomicBool,
}

struct Current {
    client: Arc<Client>,
    generation: u64,
    /// Whether another client is about to replace it.
    replacing: bool,
    /// When a request was last answered.
    answered: Instant,
}

/// When a write is allowed, and how long its record is kept.
pub(crate) struct Write {
    pub(crate) filter: Option<Expression>,
    pub(crate) record: RecordExistsAction,
    pub(crate) kept: Expiration,
}

impl Commands {
    pub(crate) async fn connect(address: Address, set: String) -> Result<Self, LockError> {
        let client = open(&address).await.map_err(|source| LockError::Start { source })?;
        let answered = Instant::now();
        let current = Current { client, generation: 0, replacing: false, answered };
        let pool = address.policy.max_conns_per_node;
        let shared = Shared {
            address,
            set,
            current: Mutex::new(current),
            permits: Semaphore::new(pool.clamp(1, Semaphore::MAX_PERMITS)),
            is_consistent: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Notes that the namespace is strongly consistent.
    pub(crate) fn set_consistent(&self) {
        self.shared.is_consistent.store(true, Ordering::Release);
    }

    /// The policy of every request. Only the master of a record knows its last grant.
    fn base(&self, filter: Option<Expression>) -> BasePolicy {
        let is_consistent = self.shared.is_consistent.load(Ordering::Acquire);
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
        &self.shared.address.namespace
    }

    pub(crate) fn set(&self) -> &str {
        &self.shared.set
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.shared.current()
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
        let client = self.current().client.clone();
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
        match timeout(ANSWER, scanning).await {
            Ok(texts) => texts.map_err(|error| failed(&error)),
            Err(_) => Err(silent()),
        }
    }

    /// Information about the namespace, from each node: its name, and pairs of names and values.
    pub(crate) async fn about_namespace(&self) -> Result<Vec<(String, String)>, BackendError> {
        let client = self.current().client.clone();
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
        match timeout(ANSWER, asking).await {
            Ok(answers) => answers.map_err(|error| failed(&error)),
            Err(_) => Err(silent()),
        }
    }

    /// Sends a request, and again only if there was no connection yet to send it over.
    async fn answer<T, F: Future<Output = aerospike::Result<T>>>(
        &self,
        send: impl Fn(Arc<Client>) -> F,
    ) -> Result<aerospike::Result<T>, BackendError> {
        let _permit = match timeout(ANSWER, self.shared.permits.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => {
                return Err(BackendError::unavailable("Aerospike: the locks were closed"));
            }
            Err(_) => {
                return Err(BackendError::unavailable(format!(
                    "Aerospike: no connection was free within {ANSWER:?}; maximum-pool-size may be \
                     too small"
                )));
            }
        };
        let (client, generation) = {
            let current = self.current();
            (current.client.clone(), current.generation)
        };
        let sending = async {
            loop {
                match send(client.clone()).await {
                    // Another one is being opened.
                    Err(error) if matches!(error.kind(), ErrorKind::ConnectionPoolEmpty) => {
                        sleep(OPENING).await;
                    }
                    answer => return answer,
                }
            }
        };
        let sent = Instant::now();
        match timeout(ANSWER, sending).await {
            Ok(answer) => {
                match &answer {
                    Err(error) if !is_answer(error) => {
                        if error.is_client_timeout() {
                            self.replace(generation, sent);
                        }
                    }
                    _ => self.current().answered = Instant::now(),
                }
                Ok(answer)
            }
            Err(_) => {
                self.replace(generation, sent);
                Err(silent())
            }
        }
    }

    /// Replaces a client over which no request was answered since this one was sent.
    fn replace(&self, generation: u64, sent: Instant) {
        let mut current = self.current();
        let answers = current.answered > sent;
        if current.generation != generation || answers || self.shared.permits.is_closed() {
            return;
        }
        if std::mem::replace(&mut current.replacing, true) {
            return;
        }
        let shared = self.shared.clone();
        tokio::spawn(async move {
            let opened = open(&shared.address).await;
            let unused = {
                let mut current = shared.current();
                current.replacing = false;
                opened.map(|client| {
                    if shared.permits.is_closed() {
                        return client;
                    }
                    current.generation += 1;
                    std::mem::replace(&mut current.client, client)
                })
            };
            match unused {
                Ok(unused) => drop(unused.close().await),
                Err(error) => tracing::debug!(%error, "the client of Aerospike was not replaced"),
            }
        });
    }

    /// Closes all connections. Later requests fail.
    pub(crate) async fn close(&self) {
        let client = {
            let current = self.current();
            self.shared.permits.close();
            current.client.clone()
        };
        if let Err(error) = client.close().await {
            tracing::debug!(%error, "the client of Aerospike did not close in order");
        }
    }
}

impl Shared {
    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client that is not closed would keep its task and its connections.
impl Drop for Shared {
    fn drop(&mut self) {
        let client = self.current().client.clone();
        // Without a runtime there is no such task.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { client.close().await });
        }
    }
}

async fn open(address: &Address) -> Result<Arc<Client>, BackendError> {
    let opening = Client::new(&address.policy, &address.hosts);
    match timeout(ANSWER, opening).await {
        Ok(Ok(client)) => Ok(Arc::new(client)),
        Ok(Err(error)) => Err(failed(&error)),
        Err(_) => Err(silent()),
    }
}

fn silent() -> BackendError {
    BackendError::in_doubt(format!("Aerospike did not answer within {ANSWER:?}"))
}
