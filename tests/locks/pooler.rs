//! Poolers that share one server connection between their clients, transaction by transaction.
//! Session locks are rejected behind them, leases work.

use std::sync::Arc;

use ekbatan::lock::{
    Attempt, GrantRequest, KeyedLockProvider, LockBackend, LockKey, LockProvider, PostgresLocks,
    PostgresLocksError,
};
use ekbatan_testkit::PostgresServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::providers::LONG;

/// What a pooler tells its clients about their server process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Greeting {
    /// What the server said.
    OfTheServer,
    /// A process that does not exist, so that it can direct requests to cancel.
    OfThePooler,
}

/// The connection to the server, and the server's greeting.
type Shared = Arc<Mutex<Option<(TcpStream, Vec<u8>)>>>;

/// A client's request for encryption, which this pooler rejects.
const ENCRYPT: [u8; 4] = 80_877_103_u32.to_be_bytes();

/// Reads one message. The first message of a client has no type byte.
async fn message(from: &mut TcpStream, kind: bool) -> std::io::Result<Vec<u8>> {
    let mut whole = vec![0; 4 + usize::from(kind)];
    from.read_exact(&mut whole).await?;
    let start = whole.len() - 4;
    let length = u32::from_be_bytes(whole[start..].try_into().unwrap()) as usize;
    whole.resize(start + length, 0);
    from.read_exact(&mut whole[start + 4..]).await?;
    Ok(whole)
}

/// Reads until the server is ready; returns the bytes, and whether a transaction is open.
async fn answer(server: &mut TcpStream) -> std::io::Result<(Vec<u8>, bool)> {
    let mut all = Vec::new();
    loop {
        let said = message(server, true).await?;
        all.extend_from_slice(&said);
        if said[0] == b'Z' {
            return Ok((all, said[5] != b'I'));
        }
    }
}

/// Replaces the process and the secret in a greeting.
fn name_another_process(greeting: &mut [u8]) {
    let mut at = 0;
    while greeting[at] != b'K' {
        at += 1 + u32::from_be_bytes(greeting[at + 1..at + 5].try_into().unwrap()) as usize;
    }
    greeting[at + 5..at + 13].copy_from_slice(&fastrand::u64(..).to_be_bytes());
}

async fn serve(
    mut client: TcpStream,
    shared: Shared,
    target: String,
    tells: Greeting,
) -> std::io::Result<()> {
    let mut startup = message(&mut client, false).await?;
    if startup[4..] == ENCRYPT {
        client.write_all(b"N").await?;
        startup = message(&mut client, false).await?;
    }
    {
        let mut shared = shared.lock().await;
        if shared.is_none() {
            let mut server = TcpStream::connect(target).await?;
            server.write_all(&startup).await?;
            let (greeting, _) = answer(&mut server).await?;
            *shared = Some((server, greeting));
        }
        let mut greeting = shared.as_ref().unwrap().1.clone();
        if tells == Greeting::OfThePooler {
            name_another_process(&mut greeting);
        }
        client.write_all(&greeting).await?;
    }
    loop {
        let mut held = None;
        loop {
            let mut asked = Vec::new();
            loop {
                let said = message(&mut client, true).await?;
                if said[0] == b'X' {
                    return Ok(());
                }
                asked.extend_from_slice(&said);
                if matches!(said[0], b'S' | b'Q') {
                    break;
                }
            }
            let mut server = match held.take() {
                Some(server) => server,
                None => shared.lock().await,
            };
            let Some((connection, _)) = server.as_mut() else { return Ok(()) };
            let sent = connection.write_all(&asked).await;
            let (answered, within) = match sent.and(answer(connection).await) {
                Ok(answered) => answered,
                // The next client gets another connection.
                Err(error) => {
                    *server = None;
                    return Err(error);
                }
            };
            client.write_all(&answered).await?;
            if !within {
                break;
            }
            held = Some(server);
        }
    }
}

/// The address of a database behind a balancer that leads to so many poolers in turn.
pub async fn balanced(url: &str, poolers: usize, tells: Greeting) -> String {
    let target = url.split(['@', '/']).find(|part| part.starts_with("127.")).unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pooled = url.replace(&target, &listener.local_addr().unwrap().to_string());
    let poolers: Vec<Shared> = (0..poolers).map(|_| Shared::default()).collect();
    tokio::spawn(async move {
        for shared in poolers.iter().cycle() {
            let Ok((client, _)) = listener.accept().await else { return };
            tokio::spawn(serve(client, shared.clone(), target.clone(), tells));
        }
    });
    pooled
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_of_postgres_leases_work_and_session_locks_are_rejected() {
    let server = PostgresServer::shared().await.unwrap();
    for tells in [Greeting::OfTheServer, Greeting::OfThePooler] {
        let pooled = balanced(&server.create_database().await.unwrap(), 1, tells).await;
        let database = PostgresLocks::connect(&pooled, 2).await.unwrap();
        let refused = database.session().await.err().unwrap();
        assert!(matches!(refused, PostgresLocksError::Unsafe { .. }), "{refused:?}");
        assert!(refused.to_string().contains("pooler"), "{refused}");

        let locks = LockProvider::new(database.leases().await.unwrap(), "test");
        let key = LockKey::named("k");
        for _ in 0..10 {
            assert!(locks.acquire(&key, LONG).await.unwrap().release().await);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_poolers_of_postgres_behind_a_balancer_do_not_pass_as_a_server() {
    let server = PostgresServer::shared().await.unwrap();
    let url = server.create_database().await.unwrap();
    // At least two sessions share a server connection.
    for tells in [Greeting::OfThePooler, Greeting::OfTheServer] {
        let pooled = balanced(&url, 2, tells).await;
        let mut sessions: Vec<Box<dyn LockBackend>> = Vec::new();
        for _ in 0..6 {
            let database = PostgresLocks::connect(&pooled, 2).await.unwrap();
            match database.session().await {
                Ok(session) => sessions.push(Box::new(session)),
                Err(PostgresLocksError::Unsafe { reason, .. }) => {
                    assert!(reason.contains("pooler"), "{reason}");
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert!(sessions.is_empty() || tells == Greeting::OfTheServer, "{}", sessions.len());
        let mut holders = 0;
        for session in &sessions {
            let request = GrantRequest::new(Uuid::new_v4(), "test", LONG);
            let attempt = session.try_grant("k", &request).await;
            holders += usize::from(matches!(attempt, Ok(Attempt::Granted(_))));
        }
        assert!(holders <= 1, "{holders} sessions hold one key");
    }
}
