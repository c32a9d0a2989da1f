//! Hand-written locks in Aerospike: a record that is created or not, with a time to live in seconds,
//! and deleted if its generation is still the one that was created.

use std::time::Duration;

use aerospike::{
    Bin, Client, ClientPolicy, Expiration, GenerationPolicy, Key, RecordExistsAction, ResultCode,
    Value, WritePolicy,
};
use ekbatan::prelude::Uuid;

use super::key::{KEY, MAX_HOLD};
use crate::failure::Failure;

/// Wait before a client retries a busy key, between half and one and a half times this.
const POLL: Duration = Duration::from_millis(10);

/// One client, with a connection pool of its own.
pub struct AerospikeRecord {
    client: Client,
    key: Key,
    owner: Bin,
}

impl AerospikeRecord {
    /// The address is `aerospike://host:port/namespace`.
    pub async fn connect(url: &str) -> Result<Self, Failure> {
        let address = url.trim_start_matches("aerospike://");
        let (host, namespace) = address.split_once('/').ok_or("an address without a namespace")?;
        let client = Client::new(&ClientPolicy::default(), &host.to_owned()).await?;
        let key = Key::new(namespace, "bench", Value::String(KEY.to_owned()))?;
        let owner = Bin::new("owner", Value::String(Uuid::now_v7().to_string()));
        Ok(Self { client, key, owner })
    }

    pub async fn acquire(&mut self) -> Result<(), Failure> {
        let seconds = u32::try_from(MAX_HOLD.as_secs())?;
        let policy = WritePolicy {
            record_exists_action: RecordExistsAction::CreateOnly,
            expiration: Expiration::Seconds(seconds),
            ..WritePolicy::default()
        };
        loop {
            match self.client.put(&policy, &self.key, std::slice::from_ref(&self.owner)).await {
                Ok(()) => return Ok(()),
                Err(error) if error.matches(&[ResultCode::KeyExistsError]) => {
                    let jitter = Uuid::now_v7().as_u64_pair().1 as f64 / u64::MAX as f64;
                    tokio::time::sleep(POLL.mul_f64(0.5 + jitter)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub async fn release(&mut self) -> Result<bool, Failure> {
        let policy = WritePolicy {
            generation_policy: GenerationPolicy::ExpectGenEqual,
            generation: 1,
            ..WritePolicy::default()
        };
        Ok(self.client.delete(&policy, &self.key).await?)
    }
}
