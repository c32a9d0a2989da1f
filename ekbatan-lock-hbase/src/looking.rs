//! Looks at the rows of many keys, those of each server by themselves.
//!
//! Invariant: a server that does not answer delays no key of another server for longer than
//! [`LOOK`]. Its own keys are reported as unchanged, and are looked at again.

use std::collections::BTreeMap;
use std::time::Duration;

use ekbatan_lock::KeyState;
use futures_util::future::join_all;
use tokio::time::timeout;

/// How long a look waits for one server. The request itself goes on after that.
pub(crate) const LOOK: Duration = Duration::from_millis(500);

/// The state of a key whose row is not known: nobody is woken.
pub(crate) fn unknown(key: &str) -> KeyState {
    KeyState { key: key.to_owned(), grant: 0, remaining: None }
}

/// The states of the keys. `look` looks at the keys of one server.
pub(crate) async fn by_server<L>(
    keys: &[String],
    server: impl Fn(&str) -> Option<String>,
    look: impl Fn(Vec<String>) -> L,
) -> Vec<KeyState>
where
    L: Future<Output = Vec<KeyState>> + Send + 'static,
{
    let mut of_servers = BTreeMap::<Option<String>, Vec<String>>::new();
    for key in keys {
        of_servers.entry(server(key)).or_default().push(key.clone());
    }
    let looks = of_servers.into_values().map(|keys| {
        let unanswered: Vec<KeyState> = keys.iter().map(|key| unknown(key)).collect();
        // A task of its own, which finds out that the server is silent and replaces the connection.
        let looking = tokio::spawn(look(keys));
        async move {
            let answered = timeout(LOOK, looking).await;
            answered.ok().and_then(Result::ok).unwrap_or(unanswered)
        }
    });
    join_all(looks).await.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_delays_no_key_of_another() {
        let keys = ["silent 1", "well 1", "silent 2", "lost", "well 2"].map(str::to_owned);
        let server = |key: &str| key.split_once(' ').map(|(server, _)| server.to_owned());
        let look = |keys: Vec<String>| async move {
            if keys[0].starts_with("silent") {
                std::future::pending::<()>().await;
            }
            let seen = |key: String| KeyState { key, grant: 7, remaining: Some(Duration::ZERO) };
            keys.into_iter().map(seen).collect()
        };
        let mut states = by_server(&keys, server, look).await;
        states.sort_by(|one, other| one.key.cmp(&other.key));
        let seen: Vec<(&str, i64)> =
            states.iter().map(|state| (state.key.as_str(), state.grant)).collect();
        let expected =
            [("lost", 7), ("silent 1", 0), ("silent 2", 0), ("well 1", 7), ("well 2", 7)];
        assert_eq!(seen, expected);
        assert!(states.iter().all(|state| state.remaining.is_none() == (state.grant == 0)));
    }
}
