//! FerretDB, with the PostgreSQL below it.

use std::fs;
use std::path::PathBuf;

use ekbatan_testkit::FerretDbServer;
use tokio::net::TcpStream;

async fn answers(server: &FerretDbServer) -> bool {
    TcpStream::connect(("127.0.0.1", server.port())).await.is_ok()
}

/// The folder of a server, which is in the command line of its processes.
fn folder_of(server: &FerretDbServer) -> PathBuf {
    let listens = format!("--listen-addr=127.0.0.1:{}", server.port());
    let lines = fs::read_dir("/proc").unwrap().flatten().filter_map(|process| {
        fs::read(process.path().join("cmdline"))
            .ok()
            .map(|line| String::from_utf8_lossy(&line).into_owned())
    });
    let line = lines.into_iter().find(|line| line.split('\0').any(|word| word == listens));
    let line = line.expect("the server runs");
    let state = line.split('\0').find_map(|word| word.strip_prefix("--state-dir=")).unwrap();
    PathBuf::from(state).parent().unwrap().to_owned()
}

#[tokio::test]
async fn a_server_crashes_and_restarts_on_its_port() {
    let server = FerretDbServer::start().await.unwrap();
    let (port, folder) = (server.port(), folder_of(&server));
    assert_eq!(server.url(), format!("mongodb://127.0.0.1:{port}/test"));
    for _ in 0..2 {
        server.kill().await.unwrap();
        assert!(!answers(&server).await, "it was killed");
        server.restart().await.unwrap();
        assert!(answers(&server).await && server.port() == port);
    }
    // An orderly restart behaves the same way.
    server.restart().await.unwrap();
    assert!(answers(&server).await && folder_of(&server) == folder);
    server.stop().await.unwrap();
    assert!(!folder.exists());
}

#[tokio::test]
async fn an_invalid_setting_is_reported_with_the_output_of_the_server() {
    let error =
        FerretDbServer::builder().setting("max_connections", "x").start().await.unwrap_err();
    assert!(error.to_string().contains("max_connections"), "{error}");
}
