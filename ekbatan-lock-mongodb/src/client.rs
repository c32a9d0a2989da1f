//! The client of the deployment, and the time in which it has to answer.
//!
//! Invariants: a request is sent once, because only the caller knows whether it may be repeated.
//! A request that gets no connection in time was not sent, and had no effect. If no answer comes in
//! time, the request fails; if no other request got one either, later ones use new connections. A
//! client that is closed stays closed.

use std::time::Duration;

use async_trait::async_trait;
use ekbatan_lock::{BackendError, ClientFactory, CurrentClient};
use mongodb::bson::{Bson, Document};
use mongodb::options::ClientOptions;
use mongodb::{Client, Collection, Database};
use tokio::time::{sleep, timeout};

use crate::answer::{failed, is_answer, is_collision};

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
    client: CurrentClient<Deployment>,
    database: String,
    collection: String,
}

/// How clients of the deployment are opened.
struct Deployment(ClientOptions);

#[async_trait]
impl ClientFactory for Deployment {
    type Client = Client;
    const SERVER: &'static str = "MongoDB";
    const ANSWER: Duration = ANSWER;

    async fn connect(&self) -> Result<Client, BackendError> {
        Client::with_options(self.0.clone()).map_err(failed)
    }

    async fn disconnect(client: Client) {
        client.shutdown().immediate(true).await;
    }
}

impl Commands {
    pub(crate) async fn connect(
        options: ClientOptions,
        database: String,
        collection: String,
    ) -> Result<Self, BackendError> {
        let connections = options.max_pool_size.map_or(POOL, |size| size as usize);
        let client = CurrentClient::open(Deployment(options), connections).await?;
        Ok(Self { client, database, collection })
    }

    /// The name of the collection, for commands.
    pub(crate) fn collection(&self) -> &str {
        &self.collection
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
        let request = self.client.for_request().await?;
        match timeout(ANSWER, send(request.client())).await {
            Ok(answer) => {
                if answer.as_ref().map_or_else(is_answer, |_| true) {
                    self.client.answered(&request);
                }
                answer.map_err(failed)
            }
            Err(_) => {
                self.client.unanswered(&request);
                Err(BackendError::in_doubt(format!("MongoDB did not answer within {ANSWER:?}")))
            }
        }
    }

    /// Closes all connections. Later requests fail.
    pub(crate) async fn close(&self) {
        self.client.close().await;
    }
}
