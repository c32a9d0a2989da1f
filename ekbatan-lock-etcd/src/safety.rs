//! The check, at the start, that locks in a cluster are safe.

use ekbatan_lock::{BackendError, LockError};

use crate::answer::Effect;
use crate::client::Client;
use crate::messages::{StatusRequest, StatusResponse};

/// Version that watches have numbers of the client's choice in.
const OLDEST: (u64, u64) = (3, 4);

/// Rejects members that cannot grant locks, and members of different clusters. Returns a member that
/// knows a leader. Members that do not answer or know none are not checked, if another one does.
pub(crate) async fn check(client: &Client) -> Result<String, LockError> {
    let mut answers = Vec::new();
    for client in client.of_each() {
        let status = client.call("/etcdserverpb.Maintenance/Status", StatusRequest {}).await;
        answers.push((client.member().to_owned(), status.map_err(|error| error.of(Effect::None))));
    }
    check_members(answers)
}

fn check_members(
    answers: Vec<(String, Result<StatusResponse, BackendError>)>,
) -> Result<String, LockError> {
    let (mut cluster, mut usable, mut unchecked) = (None, None, None);
    let mut skip = |error: BackendError| {
        tracing::warn!(%error, "a member of etcd cannot be used now");
        unchecked = Some(error);
    };
    for (name, status) in answers {
        let status = match status {
            Ok(status) => status,
            Err(error) => {
                skip(error);
                continue;
            }
        };
        check_member(&name, &status)?;
        let id = status.header.map_or(0, |header| header.cluster_id);
        let (first, of_first) = cluster.get_or_insert_with(|| (name.clone(), id));
        if *of_first != id {
            return Err(refused(&format!(
                "{first} and {name} are members of different clusters, which would grant a key \
                 twice; name the members of one cluster"
            )));
        }
        if status.leader == 0 {
            skip(BackendError::unavailable(format!(
                "etcd: {name} knows no leader of its cluster; are most of its members running?"
            )));
            continue;
        }
        usable.get_or_insert(name);
    }
    usable.ok_or_else(|| LockError::Start {
        source: unchecked.unwrap_or_else(|| BackendError::new("etcd: no member is named")),
    })
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
    Ok(())
}

fn refused(reason: &str) -> LockError {
    LockError::Unsafe { reason: format!("etcd: {reason}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::Header;

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
    }

    /// What the members `a`, `b`.. answer. Without a status, one is silent.
    fn chosen(statuses: [Option<StatusResponse>; 3]) -> Result<String, String> {
        let answers = ["a", "b", "c"].into_iter().zip(statuses).map(|(name, status)| {
            let silent = || BackendError::unavailable(format!("{name} is silent"));
            (name.to_owned(), status.ok_or_else(silent))
        });
        check_members(answers.collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_start_begins_with_a_member_that_can_be_used() {
        let member = |leader: u64, cluster_id: u64| {
            let header = Some(Header { cluster_id, ..Default::default() });
            let version = "3.5.0".to_owned();
            Some(StatusResponse { header, version, leader, ..Default::default() })
        };
        let (well, cut_off) = (|| member(1, 7), || member(0, 7));
        assert_eq!(chosen([well(), well(), None]).unwrap(), "a");
        assert_eq!(chosen([None, cut_off(), well()]).unwrap(), "c");
        let error = chosen([None, None, cut_off()]).unwrap_err();
        assert!(error.contains("c knows no leader"), "{error}");
        let error = chosen([cut_off(), None, None]).unwrap_err();
        assert!(error.contains("c is silent"), "{error}");
        let error = chosen([cut_off(), well(), member(1, 8)]).unwrap_err();
        assert!(error.contains("a and c are members of different clusters"), "{error}");
    }
}
