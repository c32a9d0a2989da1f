//! The two sides of each mode: what deposits and what handles.

use std::sync::Arc;

use ekbatan::config::DataSourceConfig;
use ekbatan::prelude::{Decimal, Uuid};

use super::alternatives::{AlternativeWorker, AlternativeWriter};
use super::broker_site::BrokerSite;
use super::node::{self, Deposits, EkbatanNode};
use super::options::EventsMode;
use super::publish_loop::PublishLoop;
use super::recorder::Recorder;
use super::share::Share;
use super::table_queue::{QueueWorkers, QueueWriter, TableQueue};
use crate::commit::StartedDatabase;
use crate::failure::Failure;

/// What deposits, and stores an event with each deposit.
pub enum Committer {
    Ekbatan(Deposits, Box<DataSourceConfig>),
    Queue(QueueWriter),
    Alternative(AlternativeWriter),
}

/// What one task deposits with.
#[derive(Clone)]
pub enum Depositor {
    Ekbatan(Deposits),
    Queue(QueueWriter),
    Alternative(AlternativeWriter),
}

/// What handles events.
pub enum Consumer {
    Ekbatan(EkbatanNode),
    Queue(QueueWorkers),
    Alternative(AlternativeWorker),
    PublishLoop(PublishLoop),
}

impl Committer {
    /// Prepares the database for a mode and connects to it.
    pub async fn open(
        mode: EventsMode,
        database: &StartedDatabase,
        tasks: u32,
    ) -> Result<Self, Failure> {
        let config = database.config(None);
        let queue = match mode {
            EventsMode::Ekbatan
            | EventsMode::Calls
            | EventsMode::CallsInTurn
            | EventsMode::Relay => {
                let executor = node::executor(&config).await?;
                return Ok(Self::Ekbatan(Deposits { executor, mode }, Box::new(config)));
            }
            EventsMode::Apalis | EventsMode::GraphileWorker | EventsMode::GraphileUnordered => {
                let writer = AlternativeWriter::open(mode, postgres(database)?, tasks).await?;
                return Ok(Self::Alternative(writer));
            }
            EventsMode::PollAndPublish => TableQueue::Published,
            EventsMode::OutboxSkipLocked => TableQueue::Outbox,
            EventsMode::Hexeract => TableQueue::Hexeract,
            EventsMode::Pgmq => TableQueue::Pgmq,
        };
        Ok(Self::Queue(QueueWriter::open(queue, postgres(database)?, tasks).await?))
    }

    /// One for each task.
    pub fn depositors(&self, tasks: u32) -> Vec<Depositor> {
        let depositor = || match self {
            Self::Ekbatan(deposits, _) => Depositor::Ekbatan(deposits.clone()),
            Self::Queue(writer) => Depositor::Queue(writer.clone()),
            Self::Alternative(writer) => Depositor::Alternative(writer.clone()),
        };
        std::iter::repeat_with(depositor).take(tasks as usize).collect()
    }

    /// Starts what handles the events. It fails for the wallet `parks`.
    pub async fn start_handling(
        &self,
        recorder: &Arc<Recorder>,
        site: Option<&BrokerSite>,
        share: Share,
        parks: Option<Uuid>,
    ) -> Result<Consumer, Failure> {
        Ok(match self {
            Self::Ekbatan(Deposits { executor, mode }, config) => {
                let executor = match share {
                    Share::Process => executor.clone(),
                    Share::Database => node::executor(config).await?,
                };
                let is_own = share == Share::Database;
                let node = match mode {
                    EventsMode::Relay => {
                        let site = site.ok_or("there is no broker")?;
                        EkbatanNode::start_relay(executor, is_own, recorder.clone(), site).await?
                    }
                    EventsMode::Ekbatan => {
                        EkbatanNode::start(executor, is_own, recorder.clone(), parks).await?
                    }
                    _ => EkbatanNode::start_calls(executor, is_own, recorder.clone()).await?,
                };
                Consumer::Ekbatan(node)
            }
            Self::Queue(writer) if writer.is_published() => {
                let site = site.ok_or("there is no broker")?;
                let recorder = recorder.clone();
                Consumer::PublishLoop(PublishLoop::start(writer, recorder, share, site).await?)
            }
            Self::Queue(writer) => {
                Consumer::Queue(QueueWorkers::start(writer, recorder.clone(), share).await?)
            }
            Self::Alternative(writer) => {
                Consumer::Alternative(writer.start_handling(recorder.clone()).await?)
            }
        })
    }

    /// Lets deposits insert what their handlers look for, without handling anything.
    pub async fn deliver(&self) -> Result<Option<ekbatan::events::Node>, Failure> {
        match self {
            Self::Ekbatan(Deposits { executor, .. }, _) => {
                Ok(Some(ekbatan::events::Node::builder(executor).start().await?))
            }
            Self::Queue(_) | Self::Alternative(_) => Ok(None),
        }
    }

    pub async fn close(self) {
        match self {
            Self::Ekbatan(deposits, _) => deposits.executor.databases().close().await,
            Self::Queue(writer) => writer.close().await,
            Self::Alternative(writer) => writer.close().await,
        }
    }
}

impl Depositor {
    /// Makes one deposit, repeating it until it commits.
    pub async fn deposit(&self, wallet: Uuid, amount: Decimal) -> Result<(), Failure> {
        match self {
            Self::Ekbatan(deposits) => deposits.deposit(wallet, amount).await,
            Self::Queue(writer) => writer.deposit(wallet, amount).await,
            Self::Alternative(writer) => writer.deposit(wallet, amount).await,
        }
    }
}

impl Consumer {
    /// Stops. Fails if it leaves more events than `left`.
    pub async fn stop(self, left: u64) -> Result<(), Failure> {
        let open = match self {
            Self::Ekbatan(node) => node.stop().await?,
            Self::Queue(workers) => workers.stop().await?,
            Self::PublishLoop(running) => running.stop().await?,
            Self::Alternative(worker) => worker.stop().await?,
        };
        if open > left {
            return Err(format!("{open} events are still to be handled; expected {left}").into());
        }
        Ok(())
    }
}

fn postgres(database: &StartedDatabase) -> Result<&str, Failure> {
    match database {
        StartedDatabase::Postgres(postgres) => Ok(postgres.url()),
        _ => Err("this mode is for PostgreSQL".into()),
    }
}
