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
    watched: HashMap<i64, Arc<Notify>>,
    /// The commands of the stream, if there is one, and its task.
    commands: Option<mpsc::UnboundedSender<WatchCommand>>,
    task: Option<JoinHandle<()>>,
    /// The number of streams so far.
    streams: u64,
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
            state.watched.insert(id, resolved.clone());
            let create = WatchCommand::Create(WatchCreate {
                key,
                start_revision: from,
                filters: vec![NO_PUT],
                watch_id: id,
            });
            (id, state.send(create))
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
        if state.watched.remove(&self.id).is_some()
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
        if let Some(resolved) = resolved {
            resolved.notify_one();
        }
    }
}

/// Resolves all watches of a stream that ends in any way, such as with its runtime.
struct Ended {
    shared: Arc<Shared>,
    stream: u64,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if state.streams != self.stream {
            // The commands of this stream went to the next one.
            return;
        }
        (state.commands, state.task) = (None, None);
        let watched = std::mem::take(&mut state.watched);
        drop(state);
        watched.into_values().for_each(|resolved| resolved.notify_one());
    }
}

/// Sends commands and resolves watches until the stream ends. Returns why it did.
async fn run(shared: &Shared, requests: Commands) -> String {
    // The stream is opened once only: its commands cannot be sent again.
    let requests = Mutex::new(Some(requests));
    let commands = || {
        let requests = requests.lock().unwrap_or_else(PoisonError::into_inner).take();
        stream::unfold(requests, |requests| async move {
            let mut requests = requests?;
            let command = requests.recv().await?;
            Some((WatchRequest { command: Some(command) }, Some(requests)))
        })
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
        // The answer to a cancelled watch, or to one whose revision is too old, too.
        if answer.canceled || !answer.events.is_empty() {
            shared.resolve(answer.watch_id);
        }
    }
}
