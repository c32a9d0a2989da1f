//! A pooler that shares one server connection between its clients, transaction by transaction.
//! Session locks are rejected behind it, leases work.

use std::sync::Arc;

use ekbatan::lock::{KeyedLockProvider, LockKey, LockProvider, PostgresLocks, PostgresLocksError};
use ekbatan_testkit::PostgresServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

use crate::providers::LONG;

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

async fn serve(mut client: TcpStream, shared: Shared, target: String) -> std::io::Result<()> {
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
        client.write_all(&shared.as_ref().unwrap().1).await?;
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
            let (connection, _) = server.as_mut().unwrap();
            connection.write_all(&asked).await?;
            let (answered, within) = answer(connection).await?;
            client.write_all(&answered).await?;
            if !within {
                break;
            }
            held = Some(server);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_of_postgres_leases_work_and_session_locks_are_rejected() {
    let server = PostgresServer::shared().await.unwrap();
    let url = server.create_database().await.unwrap();
    let target = url.split(['@', '/']).find(|part| part.starts_with("127.")).unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pooled = url.replace(&target, &listener.local_addr().unwrap().to_string());
    let shared = Shared::default();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(serve(client, shared.clone(), target.clone()));
        }
    });

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
