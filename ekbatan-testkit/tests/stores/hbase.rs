//! Private HBase servers start, crash and restart on request, and leave nothing behind.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;

use ekbatan_testkit::HBaseServer;

/// The folder of the server with this port.
fn folder(port: u16) -> Option<PathBuf> {
    let entries = fs::read_dir(std::env::temp_dir()).unwrap();
    let folders = entries.map(|entry| entry.unwrap().path());
    let mut folders = folders.filter(|path| path.to_string_lossy().contains("ekbatan-hbase-"));
    let named = format!("<name>hbase.master.port</name><value>{port}</value>");
    folders.find(|path| {
        let site = fs::read_to_string(path.join("conf/hbase-site.xml"));
        site.is_ok_and(|site| site.contains(&named))
    })
}

#[tokio::test]
async fn a_server_can_crash_and_leaves_nothing() {
    let server = HBaseServer::builder().setting("hbase.client.a", "<&>").start().await.unwrap();
    let (port, rows_port) = (server.port(), server.rows_port().await.unwrap());
    assert_eq!(server.url(), format!("hbase://127.0.0.1:{port}"));
    let cluster = server.cluster().await.unwrap();
    assert_eq!(cluster.len(), 36, "{cluster}");
    server.kill().await.unwrap();
    server.cluster().await.expect_err("the server is down");
    server.restart().await.unwrap();
    assert_eq!(server.port(), port);
    assert_eq!(server.cluster().await.unwrap(), cluster, "its data are there");
    TcpStream::connect(("127.0.0.1", rows_port)).unwrap();
    let (proxy, url) = server.behind_proxy().await.unwrap();
    assert!(url.ends_with(&format!("/?via=localhost:{rows_port}={}", proxy.address())), "{url}");
    let folder = folder(port).expect("it has a folder");
    server.stop().await.unwrap();
    assert!(!folder.exists());
    TcpStream::connect(("127.0.0.1", port)).unwrap_err();
}
