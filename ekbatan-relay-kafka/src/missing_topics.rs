//! The topics that the cluster was found not to have.
//!
//! A producer waits for a topic that is missing as long as for any answer, at each message. So a topic
//! that was missing is looked for before another message is sent to it.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ekbatan_relay::OutgoingMessage;
use futures_util::future::join_all;
use krafka::KrafkaError;
use krafka::admin::{AdminClient, DescribeTopicsOptions};
use krafka::error::ErrorCode;

/// The topics that were missing.
pub(crate) struct MissingTopics {
    admin: AdminClient,
    timeout: Duration,
    missing: Mutex<HashSet<String>>,
}

impl MissingTopics {
    pub(crate) fn new(admin: AdminClient, timeout: Duration) -> Self {
        Self { admin, timeout, missing: Mutex::default() }
    }

    pub(crate) fn has(&self, topic: &str) -> bool {
        self.missing().contains(topic)
    }

    /// Asks the cluster for the topics of these messages.
    pub(crate) async fn look_for(&self, messages: &[OutgoingMessage]) {
        self.look(messages.iter().map(|message| message.topic.as_str()).collect()).await;
    }

    /// Asks the cluster for those topics of these messages that were missing.
    pub(crate) async fn look_again(&self, messages: &[OutgoingMessage]) {
        let topics = messages.iter().map(|message| message.topic.as_str());
        let were_missing = {
            let missing = self.missing();
            topics.filter(|topic| missing.contains(*topic)).collect()
        };
        self.look(were_missing).await;
    }

    /// If the cluster does not answer, nothing changes.
    async fn look(&self, topics: HashSet<&str>) {
        let looking = topics.into_iter().map(|topic| async move {
            let described = self.admin.describe_topics([topic], DescribeTopicsOptions::default());
            let described = tokio::time::timeout(self.timeout, described).await.ok()?.ok()?;
            let is_missing = match described.get(topic)? {
                Ok(_) => false,
                Err(KrafkaError::Broker { code: ErrorCode::UnknownTopicOrPartition, .. }) => true,
                Err(_) => return None,
            };
            Some((topic, is_missing))
        });
        let found = join_all(looking).await;
        let mut missing = self.missing();
        for (topic, is_missing) in found.into_iter().flatten() {
            if is_missing {
                missing.insert(topic.to_owned());
            } else {
                missing.remove(topic);
            }
        }
    }

    fn missing(&self) -> MutexGuard<'_, HashSet<String>> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
