//! Whether a server can keep the promise: looked at once, at the start.

use std::collections::HashMap;

use ekbatan_lock::LockError;
use redis::aio::ConnectionManager;
use redis::{RedisResult, cmd};

/// Refuses a server on which a lock might be held twice in quiet times.
pub(crate) async fn check(mut server: ConnectionManager) -> Result<(), LockError> {
    let told: RedisResult<String> = cmd("INFO").query_async(&mut server).await;
    let told = match told {
        Ok(told) => told,
        Err(error) => {
            tracing::warn!(
                %error,
                "the lock server does not say how it is set up (INFO); whether it may evict \
                 locks, or is a replica or a part of a cluster, could not be checked"
            );
            return Ok(());
        }
    };
    let told = Told::read(&told);
    told.is_a_master()?;
    told.keeps_what_it_is_given()?;
    if told.get("cluster_enabled") == Some("1") {
        let told: RedisResult<String> = cmd("CLUSTER").arg("INFO").query_async(&mut server).await;
        Told::read(&told.unwrap_or_default()).is_all_of_the_cluster()?;
    }
    Ok(())
}

/// `name:value`, line by line.
struct Told<'t>(HashMap<&'t str, &'t str>);

impl<'t> Told<'t> {
    fn read(text: &'t str) -> Self {
        Self(text.lines().filter_map(|line| line.trim().split_once(':')).collect())
    }

    fn get(&self, name: &str) -> Option<&'t str> {
        self.0.get(name).copied()
    }

    fn is_a_master(&self) -> Result<(), LockError> {
        if self.get("redis_mode") == Some("sentinel") {
            return Err(refused(
                "this is a sentinel, which keeps no keys; name the master it guards",
            ));
        }
        match self.get("role") {
            Some("slave" | "replica") => {
                let master = match (self.get("master_host"), self.get("master_port")) {
                    (Some(host), Some(port)) => format!(", {host}:{port}"),
                    _ => String::new(),
                };
                Err(refused(&format!(
                    "this is a replica, which grants nothing; name its master{master}"
                )))
            }
            _ => Ok(()),
        }
    }

    fn keeps_what_it_is_given(&self) -> Result<(), LockError> {
        match (self.get("maxmemory"), self.get("maxmemory_policy")) {
            (Some("0"), _) | (_, Some("noeviction")) => Ok(()),
            (_, None) => {
                tracing::warn!(
                    "the lock server does not say its maxmemory_policy; whether it may evict \
                     locks could not be checked"
                );
                Ok(())
            }
            (_, Some(policy)) => Err(refused(&format!(
                "maxmemory-policy is {policy}: a lock that is evicted is held twice. Set it to \
                 noeviction, or use a server that is not a cache"
            ))),
        }
    }

    fn is_all_of_the_cluster(&self) -> Result<(), LockError> {
        match (self.get("cluster_size"), self.get("cluster_slots_assigned")) {
            (Some("1"), Some("16384")) => Ok(()),
            (size, slots) => Err(refused(&format!(
                "this is a node of a cluster ({} masters, {} of 16384 slots assigned), which \
                 grants only the keys of its own slots; name a server that is on its own",
                size.unwrap_or("unknown"),
                slots.unwrap_or("unknown"),
            ))),
        }
    }
}

fn refused(reason: &str) -> LockError {
    LockError::Unsafe { reason: format!("Redis: {reason}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_may_evict_is_refused_and_others_are_not() {
        let checked = |told: &str| Told::read(told).keeps_what_it_is_given();
        assert!(checked("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n").is_ok());
        assert!(checked("maxmemory:100\r\nmaxmemory_policy:noeviction\r\n").is_ok());
        assert!(checked("maxmemory:100\r\n").is_ok(), "unknown is not unsafe");
        for policy in ["allkeys-lru", "volatile-ttl"] {
            let error =
                checked(&format!("maxmemory:100\r\nmaxmemory_policy:{policy}")).unwrap_err();
            assert!(error.to_string().contains(policy), "{error}");
        }
    }

    #[test]
    fn only_a_master_is_accepted() {
        assert!(Told::read("role:master").is_a_master().is_ok());
        let replica = "role:slave\nmaster_host:10.0.0.1\nmaster_port:6379";
        let error = Told::read(replica).is_a_master().unwrap_err();
        assert!(error.to_string().ends_with("name its master, 10.0.0.1:6379"), "{error}");
        assert!(Told::read("redis_mode:sentinel").is_a_master().is_err());
    }
}
