//! The client of the deployment, and the time in which it has to answer.
//!
//! Invariants: a request is sent once, because only the caller knows whether it may be repeated.
//! A request that gets no connection in time was not sent, and had no effect. If no answer comes in
//! time, the request fails; if no other request got one either, the next one uses new connections. A
//! client that is closed stays closed.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ekbatan_lock::{BackendError, LockError};
use mongodb::bson::{Bson, Document};
use mongodb::options::ClientOptions;
use mongodb::{Client, Collection, Database};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use crate::answer::{failed, is_collision};

/// Maximum time for the server to answer.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// The size of the driver's pool if none is configured.
const POOL: usize = 10;

/// The pauses before a change that met another one is sent again.
const COLLISIONS: [Duration; 5] = {
    let millis = Duration::from_millis;
    [millis(0), millis(1), millis(5), millis(20), millis(50)]
};

pub(crate) struct Commands {
    options: ClientOptions,
    database: String,
    collection: String,
    current: Mutex<Current>,
    /// One permit for each connection of the pool. Closed with the client.
    permits: Semaphore,
}

struct Current {
    client: Client,
    generation: u64,
    /// When a request was last answered.
    answered: Instant,
}

impl Commands {
    pub(crate) fn new(
        options: ClientOptions,
        database: String,
        collection: String,
    ) -> Result<Self, LockError> {
        let client = Client::with_options(options.clone());
        let client = client.map_err(|error| LockError::Start { source: failed(error) })?;
        let answered = Instant::now();
        let current = Mutex::new(Current { client, generation: 0, answered });
        let pool = options.max_pool_size.map_or(POOL, |size| size as usize);
        let permits = Semaphore::new(pool.clamp(1, Semaphore::MAX_PERMITS));
        Ok(Self { options, database, collection, current, permits })
    }

    /// The name of the collection, for commands.
    pub(crate) fn collection(&self) -> &str {
        &self.collection
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a command about the database of the locks.
    pub(crate) async fn run(&self, command: Document) -> Result<Document, BackendError> {
        self.answer(async |client| client.database(&self.database).run_command(command).await).await
    }

    /// Sends a command, such as `hello`, that is about the server.
    pub(crate) async fn ask(&self, command: Document) -> Result<Document, BackendError> {
        self.answer(async |client| client.database("admin").run_command(command).await).await
    }

    /// Like [`run`](Self::run), and again if another request made the document at the same moment.
    pub(crate) async fn change(&self, command: Document) -> Result<Document, BackendError> {
        let send = async |client: Client| {
            let database: Database = client.database(&self.database);
            for pause in COLLISIONS {
                match database.run_command(command.clone()).await {
                    Err(error) if is_collision(&error) => sleep(pause).await,
                    answer => return answer,
                }
            }
            database.run_command(command).await
        };
        self.answer(send).await
    }

    /// All documents that an aggregation returns.
    pub(crate) async fn aggregate(&self, steps: Vec<Bson>) -> Result<Vec<Document>, BackendError> {
        self.answer(async |client| {
            let steps: Vec<Document> =
                steps.into_iter().filter_map(|step| step.as_document().cloned()).collect();
            let database = client.database(&self.database);
            let collection: Collection<Document> = database.collection(&self.collection);
            let mut cursor = collection.aggregate(steps).await?;
            let mut found = Vec::new();
            while cursor.advance().await? {
                found.push(cursor.deserialize_current()?);
            }
            Ok(found)
        })
        .await
    }

    async fn answer<T>(
        &self,
        send: impl AsyncFnOnce(Client) -> mongodb::error::Result<T>,
    ) -> Result<T, BackendError> {
        let _permit = match timeout(ANSWER, self.permits.acquire()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(BackendError::unavailable("MongoDB: the locks were closed")),
            Err(_) => {
                return Err(BackendError::unavailable(format!(
                    "MongoDB: no connection was free within {ANSWER:?}; maximum-pool-size may be \
                     too small"
                )));
            }
        };
        let (client, generation) = {
            let current = self.current();
            (current.client.clone(), current.generation)
        };
        let sent = Instant::now();
        match timeout(ANSWER, send(client)).await {
            Ok(Ok(answer)) => {
                self.current().answered = Instant::now();
                Ok(answer)
            }
            Ok(Err(error)) => Err(failed(error)),
            Err(_) => {
                self.replace(generation, sent);
                Err(BackendError::in_doubt(format!("MongoDB did not answer within {ANSWER:?}")))
            }
        }
    }

    /// Replaces a client over which no request was answered since this one was sent.
    fn replace(&self, generation: u64, sent: Instant) {
        let mut current = self.current();
        let answers = current.answered > sent;
        if current.generation != generation || answers || self.permits.is_closed() {
            return;
        }
        match Client::with_options(self.options.clone()) {
            Ok(client) => {
                let old = std::mem::replace(&mut current.client, client);
                current.generation += 1;
                tokio::spawn(old.shutdown().immediate(true).into_future());
            }
            // The options were valid at the start.
            Err(error) => tracing::warn!(%error, "the client of MongoDB could not be replaced"),
        }
    }

    /// Closes all connections. Later requests fail.
    pub(crate) async fn close(&self) {
        let client = {
            let current = self.current();
            self.permits.close();
            current.client.clone()
        };
        client.shutdown().immediate(true).await;
    }
}
