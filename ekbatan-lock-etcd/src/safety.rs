//! The check, at the start, that locks in a cluster are safe.

use ekbatan_lock::{BackendError, LockError};

use crate::answer::Effect;
use crate::client::Client;
use crate::messages::{StatusRequest, StatusResponse};

/// Version that watches have numbers of the client's choice in.
const OLDEST: (u64, u64) = (3, 4);

/// Rejects members that cannot grant locks, and members of different clusters. At least one has
/// to answer.
pub(crate) async fn check(client: &Client) -> Result<(), LockError> {
    let (mut cluster, mut silent) = (None, None);
    for client in client.of_each() {
        let name = client.member().to_owned();
        let status = client.call("/etcdserverpb.Maintenance/Status", StatusRequest {}).await;
        let status: StatusResponse = match status {
            Ok(status) => status,
            Err(error) => {
                let error = error.of(Effect::None);
                tracing::warn!(%error, "a member of etcd is unchecked");
                silent = Some(error);
                continue;
            }
        };
        check_member(&name, &status)?;
        let id = status.header.map_or(0, |header| header.cluster_id);
        match &cluster {
            None => cluster = Some((name, id)),
            Some((_, first)) if *first == id => {}
            Some((first, _)) => {
                return Err(refused(&format!(
                    "{first} and {name} are members of different clusters, which would grant a \
                     key twice; name the members of one cluster"
                )));
            }
        }
    }
    match (cluster, silent) {
        (None, Some(source)) => Err(LockError::Start { source }),
        (None, None) => {
            Err(LockError::Start { source: BackendError::new("etcd: no member is named") })
        }
        _ => Ok(()),
    }
}

fn check_member(name: &str, status: &StatusResponse) -> Result<(), LockError> {
    let mut numbers = status.version.split('.').map(|part| part.parse::<u64>().ok());
    let version = (numbers.next().flatten(), numbers.next().flatten());
    if let (Some(major), Some(minor)) = version
        && (major, minor) < OLDEST
    {
        return Err(refused(&format!(
            "{name} is version {}; locks need {}.{} or newer",
            status.version, OLDEST.0, OLDEST.1
        )));
    }
    if status.is_learner {
        return Err(refused(&format!(
            "{name} is a learner, which answers few requests; name voting members of the cluster"
        )));
    }
    if let Some(alarm) = status.errors.iter().find(|error| error.contains("alarm:")) {
        return Err(refused(&format!(
            "{name} reports {}, and the cluster takes no writes; for NOSPACE compact and \
             defragment it, then `etcdctl alarm disarm`; for CORRUPT replace the member",
            alarm.trim()
        )));
    }
    if status.leader == 0 {
        return Err(LockError::Start {
            source: BackendError::unavailable(format!(
                "etcd: {name} knows no leader of its cluster; are most of its members running?"
            )),
        });
    }
    Ok(())
}

fn refused(reason: &str) -> LockError {
    LockError::Unsafe { reason: format!("etcd: {reason}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(change: impl FnOnce(&mut StatusResponse)) -> Result<(), String> {
        let version = "3.4.23".to_owned();
        let mut status = StatusResponse { version, leader: 1, ..Default::default() };
        change(&mut status);
        check_member("a:2379", &status).map_err(|error| error.to_string())
    }

    #[test]
    fn a_member_that_cannot_grant_locks_is_refused() {
        assert_eq!(checked(|_| {}), Ok(()));
        for version in ["3.5.1", "3.10.0", "4.0.0-rc.1", "unknown"] {
            assert_eq!(checked(|status| status.version = version.to_owned()), Ok(()));
        }
        let error = |change: fn(&mut StatusResponse)| checked(change).unwrap_err();
        assert!(error(|status| status.version = "3.3.27".to_owned()).contains("3.4 or newer"));
        assert!(error(|status| status.is_learner = true).contains("voting members"));
        let alarm = error(|status| status.errors.push("memberID:1 alarm:NOSPACE ".to_owned()));
        assert!(alarm.contains("memberID:1 alarm:NOSPACE, and"), "{alarm}");
        assert!(error(|status| status.leader = 0).contains("knows no leader"));
    }
}
