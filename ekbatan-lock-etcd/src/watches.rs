//! Watches on keys that are about to be deleted: all of them over one stream.
//!
//! Invariants: a watch that resolves is a hint to look at the server. Nothing is missed: a watch
//! begins at a revision of the past, and all of them resolve when the stream ends. A watch that
//! is dropped leaves nothing behind.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::stream;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use crate::answer::Effect;
use crate::client::Client;
use crate::messages::{
    NO_PUT, WatchCancel, WatchCommand, WatchCreate, WatchRequest, WatchResponse,
};

pub(crate) struct Watches {
    shared: Arc<Shared>,
}

struct Shared {
    client: Arc<Client>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of the last watch. Zero stands for a number that the server chooses.
    last: i64,
    watched: HashMap<i64, Watched>,
    /// The commands of the stream, if there is one, and its task.
    commands: Option<mpsc::UnboundedSender<WatchCommand>>,
    task: Option<JoinHandle<()>>,
    /// The number of streams so far. The last one is used; those before may not have noticed yet that
    /// they have ended.
    streams: u64,
}

/// A watch, as the state knows it.
struct Watched {
    resolved: Arc<Notify>,
    /// The number of its stream.
    stream: u64,
}

impl Watches {
    pub(crate) fn new(client: Arc<Client>) -> Self {
        Self { shared: Arc::new(Shared { client, state: Mutex::default() }) }
    }

    /// Resolves when the key has been deleted at this revision or later, or when that cannot be
    /// told: then look.
    pub(crate) async fn deleted(&self, key: Vec<u8>, from: i64) {
        let watch = self.watch(key, from);
        watch.resolved.notified().await;
    }

    fn watch(&self, key: Vec<u8>, from: i64) -> Watch<'_> {
        let resolved = Arc::new(Notify::new());
        let (id, opened) = {
            let mut state = self.shared.state();
            state.last += 1;
            let id = state.last;
            let create = WatchCommand::Create(WatchCreate {
                key,
                start_revision: from,
                filters: vec![NO_PUT],
                watch_id: id,
            });
            let opened = state.send(create);
            let watched = Watched { resolved: resolved.clone(), stream: state.streams };
            state.watched.insert(id, watched);
            (id, opened)
        };
        if let Some(requests) = opened {
            self.shared.open(requests);
        }
        Watch { shared: &self.shared, id, resolved }
    }

    pub(crate) fn stop(&self) {
        let task = {
            let mut state = self.shared.state();
            state.commands = None;
            state.task.take()
        };
        if let Some(task) = task {
            task.abort();
        }
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The commands of a stream, as its task receives them.
type Commands = mpsc::UnboundedReceiver<WatchCommand>;

impl State {
    /// Sends a command. Returns the number and the commands of a stream that has to be opened, if
    /// there is none.
    fn send(&mut self, command: WatchCommand) -> Option<(u64, Commands)> {
        let command = match &self.commands {
            Some(commands) => commands.send(command).err()?.0,
            None => command,
        };
        let (commands, requests) = mpsc::unbounded_channel();
        // The receiver is here.
        let _ = commands.send(command);
        self.commands = Some(commands);
        self.streams += 1;
        Some((self.streams, requests))
    }
}

/// One watch, until it is dropped.
struct Watch<'w> {
    shared: &'w Arc<Shared>,
    id: i64,
    resolved: Arc<Notify>,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if let Some(watched) = state.watched.remove(&self.id)
            && watched.stream == state.streams
            && let Some(commands) = &state.commands
        {
            let cancel = WatchCommand::Cancel(WatchCancel { watch_id: self.id });
            // A stream that has ended has no watches.
            let _ = commands.send(cancel);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a stream for these commands.
    fn open(self: &Arc<Self>, (stream, requests): (u64, Commands)) {
        let ended = Ended { shared: self.clone(), stream };
        // A runtime that ends drops the task at once, which locks the state.
        let task = tokio::spawn(async move {
            let error = run(&ended.shared, requests).await;
            tracing::debug!(error, "the watches on locks ended; those that wait look again");
        });
        let mut state = self.state();
        if state.streams == stream {
            state.task = Some(task);
        }
    }

    /// Resolves a watch, and forgets it.
    fn resolve(&self, id: i64) {
        let resolved = self.state().watched.remove(&id);
        if let Some(watched) = resolved {
            watched.resolved.notify_one();
        }
    }
}

/// Resolves all watches of a stream that ends in any way, such as with its runtime. Those of earlier
/// streams have no server either.
struct Ended {
    shared: Arc<Shared>,
    stream: u64,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if state.streams == self.stream {
            (state.commands, state.task) = (None, None);
        }
        let (ended, others) = std::mem::take(&mut state.watched)
            .into_iter()
            .partition(|(_, watched)| watched.stream <= self.stream);
        state.watched = others;
        drop(state);
        let ended: HashMap<i64, Watched> = ended;
        ended.into_values().for_each(|watched| watched.resolved.notify_one());
    }
}

/// Sends commands and resolves watches until the stream ends. Returns why it did.
async fn run(shared: &Shared, requests: Commands) -> String {
    // The stream is opened once only: its commands cannot be sent again.
    let requests = Mutex::new(Some(requests));
    let commands = || {
        let requests = requests.lock().unwrap_or_else(PoisonError::into_inner).take();
        Some(stream::unfold(requests?, |mut requests| async move {
            let command = requests.recv().await?;
            Some((WatchRequest { command: Some(command) }, requests))
        }))
    };
    let opened = shared.client.stream("/etcdserverpb.Watch/Watch", commands).await;
    let mut answers = match opened {
        Ok(answers) => answers,
        Err(error) => return error.of(Effect::None).to_string(),
    };
    loop {
        let answer: WatchResponse = tokio::select! {
            answer = answers.stream.message() => match answer {
                Ok(Some(answer)) => answer,
                Ok(None) => return "the server ended them".to_owned(),
                Err(status) => return status.to_string(),
            },
            _ = answers.replaced.changed() => return "the connection was given up".to_owned(),
        };
        if refuses_a_watch(&answer) {
            return "the server refused a watch".to_owned();
        }
        // The answer to a cancelled watch, or to one whose revision is too old, too.
        if answer.canceled || !answer.events.is_empty() {
            shared.resolve(answer.watch_id);
        }
    }
}

/// Whether the server has refused to create a watch, such as because the login that the stream was
/// opened with is over. etcd 3.5 does not say which watch: all look again, and the next stream has the
/// present login.
fn refuses_a_watch(answer: &WatchResponse) -> bool {
    answer.created && answer.canceled
}

#[cfg(test)]
mod tests {
    use ekbatan_core::config::DataSourceConfig;
    use futures_util::FutureExt;

    use super::*;
    use crate::address::Address;

    fn watches() -> Watches {
        let server = DataSourceConfig::new("etcd://127.0.0.1:1");
        Watches::new(Arc::new(Client::new(Address::of(&server).unwrap())))
    }

    fn is_resolved(watch: &Watch<'_>) -> bool {
        watch.resolved.notified().now_or_never().is_some()
    }

    /// The tasks of the streams do not run in between.
    #[tokio::test]
    async fn the_watches_of_a_stream_resolve_when_it_ends_after_the_next_was_opened() {
        let watches = watches();
        let ends = |stream| drop(Ended { shared: watches.shared.clone(), stream });
        let (first, second) = (watches.watch(b"a".to_vec(), 1), watches.watch(b"b".to_vec(), 1));
        // The task of the first stream receives no more commands.
        watches.shared.state().commands = Some(mpsc::unbounded_channel().0);
        let third = watches.watch(b"c".to_vec(), 1);
        assert_eq!(watches.shared.state().streams, 2);
        ends(1);
        assert!(is_resolved(&first) && is_resolved(&second) && !is_resolved(&third));
        let fourth = watches.watch(b"d".to_vec(), 1);
        assert_eq!(watches.shared.state().streams, 2, "the second stream is still used");
        ends(2);
        assert!(is_resolved(&third) && is_resolved(&fourth));
        assert!(watches.shared.state().watched.is_empty());
    }

    /// The client sends what failed a second time, but commands that were taken are gone.
    #[tokio::test]
    async fn commands_are_sent_over_one_stream_only() {
        let client = watches().shared.client.clone();
        let tries = std::sync::atomic::AtomicUsize::new(0);
        let none = || {
            tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            None::<stream::Empty<WatchRequest>>
        };
        let opened = client.stream::<_, WatchResponse, _>("/etcdserverpb.Watch/Watch", none);
        assert!(opened.await.is_err());
        assert_eq!(tries.into_inner(), 1);
    }

    #[test]
    fn a_refused_watch_is_known_although_the_server_does_not_name_it() {
        use prost::Message;
        // The header is left out. 3.4 names the watch, 3.5 answers -1.
        let of_3_4: &[u8] = &[0x10, 7, 0x18, 1, 0x20, 1];
        let of_3_5: &[u8] =
            &[0x10, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0x18, 1, 0x20, 1];
        let (created, cancelled): (&[u8], &[u8]) = (&[0x10, 7, 0x18, 1], &[0x10, 7, 0x20, 1]);
        let refuses = |bytes: &[u8]| refuses_a_watch(&WatchResponse::decode(bytes).unwrap());
        assert!(refuses(of_3_4) && refuses(of_3_5));
        assert!(!refuses(created) && !refuses(cancelled));
    }
}
