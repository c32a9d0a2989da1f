//! Lanes: tasks that own a connection each and commit what is handed to them.
//!
//! What always holds: from the moment a lane takes a batch, nobody but the lane can stop
//! it, so a caller that is dropped leaves neither half a commit nor a broken connection
//! behind. A lane commits together whatever waits, and never waits for company. A batch
//! that updates a row which is on its way in another batch is parked until that one is
//! answered: if it committed, the parked one is stale and never makes the trip.

mod queue;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) use self::queue::OpenAction;
use self::queue::{Flight, Job, Queue};
use super::driver::{Connection, Driver, Route};
use super::{ActionId, CommitBatch, CommitError, Committed, DbError, DbErrorKind};
use crate::config::DataSourceConfig;

/// How many rows one statement carries before the rest waits for the next.
const MAX_ROWS: usize = 2_000;

/// The lanes of one database.
pub(crate) struct Lanes {
    queue: Arc<Queue>,
    tasks: std::sync::Mutex<Vec<JoinHandle<()>>>,
}

impl Lanes {
    pub(crate) fn start(driver: Arc<dyn Driver>, config: &DataSourceConfig) -> Self {
        let queue = Arc::new(Queue::default());
        let count =
            driver.capabilities().max_lanes.map_or(config.lanes, |most| config.lanes.min(most));
        let tasks = (0..count)
            .map(|_| {
                let lane = Lane {
                    driver: driver.clone(),
                    queue: queue.clone(),
                    fold_limit: config.fold_limit,
                    patience: config.connection_timeout,
                    commit_timeout: config.commit_timeout,
                    settle_timeout: config.settle_timeout,
                };
                tokio::spawn(lane.run())
            })
            .collect();
        Self { queue, tasks: std::sync::Mutex::new(tasks) }
    }

    /// Hands over a batch and waits for the answer.
    pub(crate) async fn submit(&self, batch: CommitBatch) -> Result<Committed, CommitError> {
        let action = batch.action;
        let (answer, answered) = oneshot::channel();
        if !self.queue.push(batch, answer) {
            return Err(CommitError::Refused(closed()));
        }
        answered.await.unwrap_or_else(|_| {
            Err(CommitError::Unknown(action, "the task that committed it was stopped".to_owned()))
        })
    }

    /// Marks an action as being worked for, so that whoever asks for its outcome waits.
    pub(crate) fn open_action(&self, action: ActionId) -> OpenAction {
        self.queue.open(action)
    }

    pub(crate) fn is_open(&self, action: ActionId) -> bool {
        self.queue.is_open(action)
    }

    /// Takes an action's batch back, if nothing of it was sent yet.
    pub(crate) fn withdraw(&self, action: ActionId) -> bool {
        self.queue.withdraw(action)
    }

    pub(crate) async fn settled(&self, action: ActionId) {
        self.queue.settled(action).await;
    }

    /// Commits what still waits, and ends.
    pub(crate) async fn close(&self) {
        self.queue.close();
        let tasks = std::mem::take(
            &mut *self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner),
        );
        for task in tasks {
            let _ = task.await;
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.queue.close();
    }
}

fn closed() -> DbError {
    DbError::new(DbErrorKind::Unavailable, "the databases were closed; nothing was sent")
}

struct Lane {
    driver: Arc<dyn Driver>,
    queue: Arc<Queue>,
    fold_limit: usize,
    patience: Duration,
    commit_timeout: Duration,
    settle_timeout: Duration,
}

/// A connection, or the identity of the one that broke.
#[derive(Default)]
struct Line {
    connection: Option<Box<dyn Connection>>,
}

impl Lane {
    async fn run(self) {
        let mut line = Line::default();
        while let Some(flight) = Queue::next(&self.queue, self.fold_limit, MAX_ROWS).await {
            self.serve(&mut line, flight).await;
        }
    }

    async fn serve(&self, line: &mut Line, mut flight: Flight) {
        // A connection may have died while nobody used it. What is then known not to have
        // committed is sent once more; a second loss is reported.
        for last in [false, true] {
            let connection = match line.connection.take() {
                Some(connection) => connection,
                None => match self.connect().await {
                    Ok(connection) => connection,
                    Err(error) => return flight.refuse_all(&error),
                },
            };
            match self.send(connection, &mut flight).await {
                Ok(connection) => {
                    line.connection = Some(connection);
                    return;
                }
                Err((identity, error)) => {
                    tracing::warn!(%error, batches = flight.jobs().len(), "a lane lost its connection in a commit");
                    line.connection = self.settle(identity.as_deref(), &mut flight, &error).await;
                    if last {
                        flight.refuse_all(&error);
                    }
                    if flight.is_empty() {
                        return;
                    }
                }
            }
        }
    }

    async fn connect(&self) -> Result<Box<dyn Connection>, DbError> {
        let mut connection = self.driver.connect(Route::Primary).await?;
        connection.become_lane(self.patience).await?;
        Ok(connection)
    }

    /// One trip. On a loss, the flight still holds every job.
    async fn send(
        &self,
        mut connection: Box<dyn Connection>,
        flight: &mut Flight,
    ) -> Result<Box<dyn Connection>, (Option<String>, DbError)> {
        let taken = Instant::now();
        let trips = connection.round_trips();
        let answers = {
            let batches: Vec<&CommitBatch> = flight.jobs().iter().map(|job| &job.batch).collect();
            let single_writer = self.driver.capabilities().single_writer;
            let committing = commit_apart_if_need_be(&mut *connection, &batches, single_writer);
            // A dead line may stay silent for ever. What is in this process answers by itself.
            match single_writer {
                true => committing.await,
                false => tokio::time::timeout(self.commit_timeout, committing)
                    .await
                    .unwrap_or_else(|_| {
                        let why = format!("no answer to a commit within {:?}", self.commit_timeout);
                        Err(DbError::new(DbErrorKind::Unavailable, why))
                    }),
            }
        };
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => return Err((connection.identity().map(str::to_owned), error)),
        };
        let round_trips = u32::try_from(connection.round_trips() - trips).unwrap_or(u32::MAX);
        let folded = answers.len();
        let mut answers = answers.into_iter();
        flight.answer_each(|job: &Job| {
            let committed = Committed {
                action: job.batch.action,
                round_trips,
                folded,
                lane_wait: taken.saturating_duration_since(job.since),
                token: None,
            };
            answers.next().map(|answer| answer.map(|()| committed))
        });
        Ok(connection)
    }

    /// Learns what became of a flight whose connection broke, and answers all of it that is
    /// known. What stays in the flight did not commit.
    async fn settle(
        &self,
        broken: Option<&str>,
        flight: &mut Flight,
        cause: &DbError,
    ) -> Option<Box<dyn Connection>> {
        flight.answer_each(|job| {
            (!job.batch.traceable).then(|| {
                let why = format!("{cause}; the write left no action id by which to look it up");
                Err(CommitError::Unknown(job.batch.action, why))
            })
        });
        let actions: Vec<ActionId> = flight.jobs().iter().map(|job| job.batch.action).collect();
        if actions.is_empty() {
            return None;
        }
        match tokio::time::timeout(self.settle_timeout, look(&*self.driver, broken, &actions)).await
        {
            Ok((mut connection, found)) => {
                flight.answer_each(|job| {
                    found.contains(&job.batch.action).then(|| {
                        Ok(Committed {
                            action: job.batch.action,
                            round_trips: 1,
                            folded: actions.len(),
                            lane_wait: Duration::ZERO,
                            token: None,
                        })
                    })
                });
                connection.become_lane(self.patience).await.ok().map(|()| connection)
            }
            Err(_) => {
                self.keep_looking(broken, &actions);
                let timeout = self.settle_timeout;
                flight.answer_each(|job| {
                    let why =
                        format!("{cause}; and the database could not be asked within {timeout:?}");
                    Some(Err(CommitError::Unknown(job.batch.action, why)))
                });
                None
            }
        }
    }

    /// Goes on asking behind the callers who were told "unknown". Until the old session is
    /// known to have ended, its actions count as open, so that nobody is told "not committed"
    /// of what may yet commit.
    fn keep_looking(&self, broken: Option<&str>, actions: &[ActionId]) {
        let open: Vec<OpenAction> = actions.iter().map(|action| self.queue.open(*action)).collect();
        let (driver, queue) = (self.driver.clone(), self.queue.clone());
        let (broken, actions) = (broken.map(str::to_owned), actions.to_vec());
        tokio::spawn(async move {
            tokio::select! {
                _ = look(&*driver, broken.as_deref(), &actions) => {}
                () = queue.closed() => {}
            }
            drop(open);
        });
    }
}

/// Connects and asks, again and again, until there is an answer.
async fn look(
    driver: &dyn Driver,
    broken: Option<&str>,
    actions: &[ActionId],
) -> (Box<dyn Connection>, Vec<ActionId>) {
    let mut pause = Duration::from_millis(20);
    loop {
        match driver.connect(Route::Primary).await {
            Ok(mut connection) => match connection.settle(broken, actions).await {
                Ok(found) => return (connection, found),
                Err(error) => {
                    tracing::debug!(%error, "asking what committed failed; trying again")
                }
            },
            Err(error) => {
                tracing::debug!(%error, "connecting to ask what committed failed; trying again")
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

/// Commits batches together. If one of the company fails for a reason of its own, and takes the
/// others with it, each alone shows which one it was.
async fn commit_apart_if_need_be(
    connection: &mut dyn Connection,
    batches: &[&CommitBatch],
    single_writer: bool,
) -> Result<Vec<Result<(), CommitError>>, DbError> {
    match connection.commit(batches).await {
        Err(error) if error.is_connection_lost() => Err(error),
        Err(error) if batches.len() == 1 => Ok(vec![Err(CommitError::Refused(error))]),
        // The one writer was not to be had: each alone would only wait as long again.
        Err(error) if single_writer && error.kind() == DbErrorKind::LockTimeout => {
            let refused = || CommitError::Refused(DbError::new(error.kind(), error.to_string()));
            Ok(batches.iter().map(|_| Err(refused())).collect())
        }
        Err(_) => {
            let mut answers = Vec::with_capacity(batches.len());
            for batch in batches {
                match connection.commit(&[batch]).await {
                    Ok(alone) => answers.extend(alone),
                    Err(error) if error.is_connection_lost() => return Err(error),
                    Err(error) => answers.push(Err(CommitError::Refused(error))),
                }
            }
            Ok(answers)
        }
        answers => answers,
    }
}
