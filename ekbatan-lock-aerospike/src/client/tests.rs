//! What is known of requests to a node that falls silent or goes down. The node speaks the part of the
//! protocol by which a client finds it. It answers so many other requests, each as if its filter did
//! not hold, and is silent then.

use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use ekbatan_lock::{Attempt, FailureKind, Grant, GrantRequest, LockBackend};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use uuid::Uuid;

use super::*;
use crate::backend::AerospikeBackend;
use crate::record;
use crate::records::Records;

/// The type of a message that asks for information.
const INFO: u8 = 1;

/// The type of a message about a record, the length of its fixed part, and the result in it.
const RECORD: (u8, u8, usize) = (3, 22, 5);

/// Where a message about a record says for how many seconds the record is kept.
const KEPT: std::ops::Range<usize> = 10..14;

/// A node that lives in the tasks.
struct Node {
    tasks: JoinSet<()>,
    requests: Arc<Requests>,
}

struct Requests {
    /// How many more are answered.
    answers: AtomicUsize,
    /// For how many seconds each wants its record to be kept.
    kept: Mutex<Vec<u32>>,
}

async fn serve(mut connection: TcpStream, requests: Arc<Requests>) -> std::io::Result<()> {
    loop {
        // The version, the type, and the length in six bytes.
        let mut head = [0; 8];
        connection.read_exact(&mut head).await?;
        let length =
            u64::from_be_bytes([0, 0, head[2], head[3], head[4], head[5], head[6], head[7]]);
        let mut asked = vec![0; usize::try_from(length).unwrap()];
        connection.read_exact(&mut asked).await?;
        if head[1] != INFO {
            let kept = u32::from_be_bytes(asked[KEPT].try_into().unwrap());
            requests.kept.lock().unwrap().push(kept);
            let is_answered = |left: usize| left.checked_sub(1);
            let answers = &requests.answers;
            if answers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, is_answered).is_ok() {
                let (kind, length, result) = RECORD;
                let mut answer = vec![0; usize::from(length)];
                answer[0] = length;
                answer[result] = u8::from(aerospike::ResultCode::FilteredOut);
                connection.write_all(&[2, kind, 0, 0, 0, 0, 0, length]).await?;
                connection.write_all(&answer).await?;
            }
            continue;
        }
        let every_partition = format!("test:0,1,{}//8=", "////".repeat(170));
        let mut answer = String::new();
        for name in String::from_utf8_lossy(&asked).lines() {
            let value = match name {
                "node" => "A",
                "build" => "8.1.0.0",
                "replicas" => &every_partition,
                name if name.ends_with("generation") => "1",
                _ => "",
            };
            answer.push_str(&format!("{name}\t{value}\n"));
        }
        head[2..].copy_from_slice(&u64::try_from(answer.len()).unwrap().to_be_bytes()[2..]);
        connection.write_all(&[&head, answer.as_bytes()].concat()).await?;
    }
}

async fn address(answers: usize) -> (Address, Node) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let answers = AtomicUsize::new(answers);
    let requests = Arc::new(Requests { answers, kept: Mutex::default() });
    let mut node = Node { tasks: JoinSet::new(), requests: requests.clone() };
    node.tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (connection, _) = listener.accept().await.unwrap();
            connections.spawn(serve(connection, requests.clone()));
        }
    });
    let url = format!("aerospike://127.0.0.1:{port}/test?seed-only=true");
    let config = ekbatan_core::config::DataSourceConfig::new(&url);
    (Address::of(&config).unwrap(), node)
}

async fn connect(address: Address) -> Commands {
    Commands::connect(address, "locks".to_owned()).await.unwrap()
}

async fn node(answers: usize) -> (Commands, Node) {
    let (address, node) = address(answers).await;
    (connect(address).await, node)
}

/// Runs a future on a runtime that ends with it.
async fn elsewhere<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let thread = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(work)
    });
    tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap()
}

async fn write(commands: &Commands) -> Result<Option<Record>, BackendError> {
    let write =
        Write { filter: None, record: RecordExistsAction::Update, kept: Expiration::DontUpdate };
    let operation = aerospike::operations::put(&aerospike::Bin::new("o", Value::from(1)));
    commands.write("k", write, &[operation]).await
}

async fn failure_of_a_write(commands: &Commands) -> FailureKind {
    write(commands).await.unwrap_err().kind()
}

/// Both at once, so that they need two connections.
async fn two_writes(commands: &Commands) {
    let (one, other) = tokio::join!(write(commands), write(commands));
    assert!(one.unwrap().is_none() && other.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_outlive_the_runtime_of_the_caller_that_opened_them() {
    let (commands, _node) = node(4).await;
    let commands = Arc::new(commands);
    let of_caller = commands.clone();
    elsewhere(async move { two_writes(&of_caller).await }).await;
    two_writes(&commands).await;
}

#[tokio::test]
async fn no_request_is_sent_once_the_runtime_of_the_client_has_ended() {
    let (address, _node) = address(1).await;
    let commands = elsewhere(connect(address)).await;
    assert_eq!(failure_of_a_write(&commands).await, FailureKind::Unavailable);
    let scanned = commands.scan("k", record::is_held()).await;
    assert_eq!(scanned.unwrap_err().kind(), FailureKind::Unavailable);
}

/// The request may have been sent before.
#[tokio::test]
async fn a_request_is_in_doubt_if_the_runtime_of_the_client_ends_meanwhile() {
    let (address, _node) = address(0).await;
    let commands = elsewhere(connect(address)).await;
    // So does a request that waits for a connection.
    let waiting = async { sleep(OPENING).await };
    let error = commands.in_runtime(waiting).await.unwrap_err();
    assert_eq!(error.kind(), FailureKind::InDoubt);
    assert!(error.to_string().contains("has ended"), "{error}");
}

#[tokio::test]
#[should_panic(expected = "a mistake")]
async fn a_panic_in_a_runtime_that_lives_is_passed_on() {
    let (commands, _node) = node(0).await;
    drop(commands.in_runtime(async { panic!("a mistake") }).await);
}

#[tokio::test]
async fn a_write_that_a_silent_node_got_is_in_doubt() {
    let (commands, _node) = node(0).await;
    assert_eq!(failure_of_a_write(&commands).await, FailureKind::InDoubt);
}

#[tokio::test]
async fn a_write_for_which_there_was_no_connection_had_no_effect() {
    let (commands, mut node) = node(0).await;
    node.tasks.shutdown().await;
    assert_eq!(failure_of_a_write(&commands).await, FailureKind::Unavailable);
}

#[tokio::test]
async fn a_write_over_a_client_that_is_closed_had_no_effect() {
    let (commands, _node) = node(0).await;
    let client = commands.client.client().unwrap();
    client.close().await.unwrap();
    assert_eq!(failure_of_a_write(&commands).await, FailureKind::Unavailable);
}

#[tokio::test]
async fn a_mark_that_fails_does_not_fail_the_try() {
    let (commands, _node) = node(1).await;
    let backend = AerospikeBackend::over(Records::new(commands, true), false);
    let request = GrantRequest::new(Uuid::new_v4(), "a test", ANSWER).waiting();
    assert_eq!(backend.try_grant("k", &request).await.unwrap(), Attempt::Busy(None));
}

/// An extension may come late, after one for longer. Then its record must not be deleted earlier.
#[tokio::test]
async fn an_extension_that_is_left_out_does_not_change_the_life_of_the_record() {
    let (commands, node) = node(2).await;
    let records = Records::new(commands, true);
    let grant = Grant { owner: Uuid::new_v4(), token: 7 };
    assert!(!records.extend("k", &grant, ANSWER).await.unwrap(), "both were left out");
    let kept = [record::kept(ANSWER), u32::from(Expiration::DontUpdate)];
    assert_eq!(*node.requests.kept.lock().unwrap(), kept);
}
