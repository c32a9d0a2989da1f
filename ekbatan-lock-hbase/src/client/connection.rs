//! One connection to one service of one server, shared by all callers.
//!
//! Invariants: calls are answered in any order, by their numbers. When the connection ends in any
//! way, every caller that waits learns it. A caller that is dropped leaves nothing behind.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::error::CallError;
use super::frame;
use super::service::{ANSWER, Service};

pub(super) struct Connection {
    /// As the cluster names it, `host:port`.
    server: String,
    calls: Arc<Mutex<Calls>>,
    requests: mpsc::UnboundedSender<Vec<u8>>,
    tasks: [JoinHandle<()>; 2],
}

type Answered = Result<Vec<u8>, CallError>;

#[derive(Default)]
struct Calls {
    last: u32,
    waiting: HashMap<u32, oneshot::Sender<Answered>>,
    /// Why the connection has ended.
    ended: Option<CallError>,
}

impl Connection {
    /// Connects to the server at `address`. Needs a Tokio runtime.
    pub(super) async fn open(
        server: &str,
        address: &str,
        service: Service,
        user: &str,
    ) -> Result<Self, CallError> {
        let unreachable = |why: String| CallError::Unreachable { server: server.to_owned(), why };
        let connecting = async {
            let mut stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            stream.write_all(&frame::greeting(user, service.name())).await?;
            Ok::<_, std::io::Error>(stream)
        };
        let stream = match timeout(ANSWER, connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(unreachable(error.to_string())),
            Err(_) => return Err(unreachable(format!("no connection within {ANSWER:?}"))),
        };
        let (reading, writing) = stream.into_split();
        let calls = Arc::<Mutex<Calls>>::default();
        let (requests, to_send) = mpsc::unbounded_channel();
        let reader = tokio::spawn(read(server.to_owned(), reading, calls.clone()));
        let writer = tokio::spawn(write(server.to_owned(), writing, to_send, calls.clone()));
        Ok(Self { server: server.to_owned(), calls, requests, tasks: [reader, writer] })
    }

    /// Why the connection has ended, if it has.
    pub(super) fn ended(&self) -> Option<CallError> {
        locked(&self.calls).ended.clone()
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn call<A>(&self, method: &str, request: &impl Message) -> Result<A, CallError>
    where
        A: Message + Default,
    {
        let (call, answered) = self.begin(method, request)?;
        let _call = PendingCall { calls: &self.calls, call };
        let bytes = match timeout(ANSWER, answered).await {
            Ok(Ok(answered)) => answered?,
            Ok(Err(_)) => return Err(self.cut("it was closed here")),
            Err(_) => return Err(CallError::Silent { server: self.server.clone() }),
        };
        frame::message(&bytes).map_err(|why| self.cut(&why))
    }

    fn begin(
        &self,
        method: &str,
        request: &impl Message,
    ) -> Result<(u32, oneshot::Receiver<Answered>), CallError> {
        let (answer, answered) = oneshot::channel();
        let mut calls = locked(&self.calls);
        if let Some(ended) = &calls.ended {
            return Err(ended.clone());
        }
        // Small numbers only: those of the server's own messages are negative.
        calls.last = if calls.last >= 1 << 30 { 1 } else { calls.last + 1 };
        let call = calls.last;
        calls.waiting.insert(call, answer);
        drop(calls);
        let timeout = u32::try_from(ANSWER.as_millis()).unwrap_or(u32::MAX);
        // If the writer has ended, it says so to all that wait.
        let _ = self.requests.send(frame::call(call, method, timeout, request));
        Ok((call, answered))
    }

    fn cut(&self, why: &str) -> CallError {
        CallError::Cut { server: self.server.clone(), why: why.to_owned() }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// A call that waits, until it is dropped.
struct PendingCall<'c> {
    calls: &'c Mutex<Calls>,
    call: u32,
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        locked(self.calls).waiting.remove(&self.call);
    }
}

fn locked(calls: &Mutex<Calls>) -> MutexGuard<'_, Calls> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells each waiting caller why the connection has ended, also if its runtime ends.
struct End {
    calls: Arc<Mutex<Calls>>,
    why: CallError,
}

impl Drop for End {
    fn drop(&mut self) {
        let mut calls = locked(&self.calls);
        let why = calls.ended.get_or_insert_with(|| self.why.clone()).clone();
        let waiting = std::mem::take(&mut calls.waiting);
        drop(calls);
        for answer in waiting.into_values() {
            let _ = answer.send(Err(why.clone()));
        }
    }
}

async fn read(server: String, reading: OwnedReadHalf, calls: Arc<Mutex<Calls>>) {
    let why = CallError::Cut { server: server.clone(), why: "its runtime has ended".to_owned() };
    let mut end = End { calls: calls.clone(), why };
    let mut reading = BufReader::new(reading);
    end.why = loop {
        let answer = match next(&mut reading).await.and_then(|bytes| frame::answer(&bytes)) {
            Ok(answer) => answer,
            Err(why) => break CallError::Cut { server, why },
        };
        let answered = answer.message.map_err(|it| frame::exception(&server, &it));
        let waiting = locked(&calls).waiting.remove(&answer.call_id);
        match (waiting, answered) {
            // The caller may have gone.
            (Some(waiting), answered) => drop(waiting.send(answered)),
            // The server refuses the connection as a whole.
            (None, Err(refused)) if answer.call_id > i32::MAX as u32 => break refused,
            (None, _) => {}
        }
    };
}

/// The bytes of the next answer.
async fn next(reading: &mut BufReader<OwnedReadHalf>) -> Result<Vec<u8>, String> {
    let length = reading.read_u32().await.map_err(|error| error.to_string())?;
    if length > frame::LONGEST {
        return Err("the other side is not HBase, or its connections are encrypted".to_owned());
    }
    // The memory grows with the bytes that arrive, not with the length that was announced.
    let mut bytes = Vec::new();
    let read = reading.take(length.into()).read_to_end(&mut bytes).await;
    match read.map_err(|error| error.to_string())? {
        whole if whole == length as usize => Ok(bytes),
        part => Err(format!("it ended after {part} of {length} bytes")),
    }
}

async fn write(
    server: String,
    mut writing: OwnedWriteHalf,
    mut requests: mpsc::UnboundedReceiver<Vec<u8>>,
    calls: Arc<Mutex<Calls>>,
) {
    let why = CallError::Cut { server: server.clone(), why: "its runtime has ended".to_owned() };
    let mut end = End { calls, why };
    while let Some(mut bytes) = requests.recv().await {
        while let Ok(more) = requests.try_recv() {
            bytes.extend(more);
        }
        if let Err(error) = writing.write_all(&bytes).await {
            end.why = CallError::Cut { server, why: error.to_string() };
            return;
        }
    }
}
