//! The check, at the start, that locks on a server are safe.

use std::collections::HashMap;

use ekbatan_lock::LockError;
use redis::aio::ConnectionManager;
use redis::{RedisResult, cmd};

/// Rejects a server that could grant a lock twice even without a failure.
pub(crate) async fn check(mut server: ConnectionManager) -> Result<(), LockError> {
    let info: RedisResult<String> = cmd("INFO").query_async(&mut server).await;
    let info = match info {
        Ok(info) => info,
        Err(error) => {
            tracing::warn!(
                %error,
                "the lock server does not answer INFO; it is unchecked whether it may evict \
                 locks, or is a replica or a part of a cluster"
            );
            return Ok(());
        }
    };
    let info = ServerFacts::read(&info);
    info.check_master()?;
    info.check_eviction()?;
    if info.get("cluster_enabled") == Some("1") {
        let info: RedisResult<String> = cmd("CLUSTER").arg("INFO").query_async(&mut server).await;
        ServerFacts::read(&info.unwrap_or_default()).check_cluster()?;
    }
    Ok(())
}

/// The answer of `INFO`: lines of `name:value`.
struct ServerFacts<'t>(HashMap<&'t str, &'t str>);

impl<'t> ServerFacts<'t> {
    fn read(text: &'t str) -> Self {
        Self(text.lines().filter_map(|line| line.trim().split_once(':')).collect())
    }

    fn get(&self, name: &str) -> Option<&'t str> {
        self.0.get(name).copied()
    }

    fn check_master(&self) -> Result<(), LockError> {
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

    fn check_eviction(&self) -> Result<(), LockError> {
        match (self.get("maxmemory"), self.get("maxmemory_policy")) {
            (Some("0"), _) | (_, Some("noeviction")) => Ok(()),
            (_, None) => {
                tracing::warn!(
                    "the lock server does not report its maxmemory_policy; it is unchecked whether \
                     it may evict locks"
                );
                Ok(())
            }
            (_, Some(policy)) => Err(refused(&format!(
                "maxmemory-policy is {policy}: a lock that is evicted is held twice. Set it to \
                 noeviction, or use a server that is not a cache"
            ))),
        }
    }

    fn check_cluster(&self) -> Result<(), LockError> {
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
        let checked = |info: &str| ServerFacts::read(info).check_eviction();
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
        assert!(ServerFacts::read("role:master").check_master().is_ok());
        let replica = "role:slave\nmaster_host:10.0.0.1\nmaster_port:6379";
        let error = ServerFacts::read(replica).check_master().unwrap_err();
        assert!(error.to_string().ends_with("name its master, 10.0.0.1:6379"), "{error}");
        assert!(ServerFacts::read("redis_mode:sentinel").check_master().is_err());
    }
}
