//! What closes windows and emits batches: the nodes of this process, or the naive variant.

use std::time::Duration;

use ekbatan::events::Node;
use ekbatan::jobs::JobNode;
use ekbatan::jobs::windows::Windows;
use ekbatan::prelude::*;
use tokio::task::JoinSet;

use crate::Failure;
use crate::args::SettlementArgs;
use crate::broker::{self, Consumer};
use crate::naive::NaiveCloser;
use crate::settlement::Settlement;

/// The nodes of this process, and the consumer of what they send.
pub struct Nodes {
    node: Node,
    jobs: JobNode,
    consumer: Consumer,
}

pub enum Machine {
    Nodes(Box<Nodes>),
    /// Ends when it is dropped.
    Naive(JoinSet<()>),
}

impl Machine {
    pub async fn start(
        args: &SettlementArgs,
        executor: &ActionExecutor,
        windows: &Windows<Settlement>,
    ) -> Result<Self, Failure> {
        if args.naive {
            let (executor, windows) = (executor.clone(), windows.clone());
            let dies_after_commit = args.die_after_batch;
            let mut closing = JoinSet::new();
            closing.spawn(NaiveCloser { executor, windows, dies_after_commit }.run());
            return Ok(Self::Naive(closing));
        }
        let (relay, consumer) = broker::open(&args.broker, executor).await?;
        // A short lease, so that what a killed process had begun goes on soon.
        let lease = Duration::from_secs(2);
        let node = windows.add_handlers(Node::builder(executor)).relay(relay).lease(lease);
        let node = node.start().await?;
        let jobs = windows.add_job(JobNode::builder(executor), args.job_schedule()?).lease(lease);
        let jobs = jobs.start().await?;
        Ok(Self::Nodes(Box::new(Nodes { node, jobs, consumer })))
    }

    /// Lets what runs end, and hands the rest to other processes.
    pub async fn stop(self) {
        match self {
            Self::Nodes(nodes) => {
                let Nodes { node, jobs, consumer } = *nodes;
                let grace = Duration::from_secs(10);
                tokio::join!(node.drain(grace), jobs.drain(grace));
                drop(consumer);
            }
            Self::Naive(mut closing) => closing.shutdown().await,
        }
    }
}
