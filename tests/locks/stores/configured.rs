//! The providers from a configuration in YAML.

use ekbatan::lock::{KeyedLockProvider, LockError, LockKey, LockLevel};
use ekbatan::prelude::*;
use uuid::Uuid;

use crate::providers::{Kind, LONG};
use crate::stores::url;

on_providers! {
    |kind| kind;
    [; stores]
    the_configuration_opens_the_locks,
}

async fn the_configuration_opens_the_locks(kind: Kind) {
    let name = match kind {
        Kind::MongoDb => "mongodb",
        Kind::HBase => "hbase",
        _ => "aerospike",
    };
    let (url, namespace) = (url(kind).await, Uuid::new_v4());
    let yaml = |zone: &str| {
        format!(
            "ekbatan: {{configs: {{primary-config: {{url: 'sqlite:a.db'}}, lock-config: {{provider: \
             {name}, url: '{url}', namespace: '{namespace}', zone: {zone}, term: 5s}}}}}}"
        )
    };
    let open = async |zone: &str| {
        let config = EkbatanConfig::loader().yaml(yaml(zone)).environment(false).load().unwrap();
        KeyedLocks::connect(&config).await.unwrap()
    };
    let (here, beside, far) = (open("eu").await, open("eu").await, open("us").await);
    let key = LockKey::named("k");
    let lease = here.acquire(&key, LONG).await.unwrap();
    let now = std::time::Duration::ZERO;
    assert!(beside.try_acquire(&key, now, LONG).await.unwrap().is_none(), "one zone");
    let of_other_zone = far.try_acquire(&key, now, LONG).await.unwrap().unwrap();
    let remaining = beside.inspect(&key).await.unwrap().unwrap().remaining.unwrap();
    assert!(remaining < LONG / 2, "the term is that of the configuration: {remaining:?}");
    assert!(lease.release().await && of_other_zone.release().await);
    let global = key.at_level(LockLevel::Global);
    match (kind, here.try_acquire(&global, now, LONG).await) {
        (Kind::Aerospike, Err(LockError::OneZone { backend, .. })) => {
            assert_eq!(backend, "aerospike");
        }
        (Kind::MongoDb | Kind::HBase, Ok(Some(lease))) => {
            assert!(far.try_acquire(&global, now, LONG).await.unwrap().is_none());
            assert!(lease.release().await);
        }
        (_, other) => panic!("{other:?}"),
    }
}
