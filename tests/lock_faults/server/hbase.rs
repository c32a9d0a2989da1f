//! One HBase for all tests, because it takes half a minute to start. Each test has a table of its
//! own, and they run one after another, so that no test harms another one.

use std::fs;

use ekbatan::lock::{HBaseBackend, LockBackend};
use ekbatan_testkit::{HBaseServer, Proxy};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};
use uuid::Uuid;

static SERVER: Mutex<Option<HBaseServer>> = Mutex::const_new(None);

/// The table of one test.
pub struct Table {
    pub server: MappedMutexGuard<'static, HBaseServer>,
    name: String,
    rows: String,
}

impl Table {
    pub async fn new() -> Self {
        let mut server = SERVER.lock().await;
        if server.is_none() {
            *server = Some(HBaseServer::start().await.unwrap());
        }
        let server = MutexGuard::map(server, |server| server.as_mut().unwrap());
        let rows = format!("127.0.0.1:{}", server.rows_port().await.unwrap());
        Self { server, name: format!("locks_{}", Uuid::new_v4().simple()), rows }
    }

    pub fn url(&self) -> String {
        format!("{}/{}", self.server.url(), self.name)
    }

    /// The address of the rows.
    pub fn rows(&self) -> &str {
        &self.rows
    }

    pub fn url_through(&self, proxy: &Proxy) -> String {
        let port = self.rows.rsplit(':').next().unwrap();
        format!("{}?via=localhost:{port}={}", self.url(), proxy.address())
    }
}

/// The locks that are held, without those that are kept for a moment for a process that waited.
pub async fn held(url: &str) -> Vec<String> {
    let look = HBaseBackend::connect(url, HBaseBackend::NAMESPACE).await.unwrap();
    let held = look.list(&[String::new()], usize::MAX).await.unwrap();
    let held = held.into_iter().filter(|(_, holder)| holder.holder != "the next process");
    held.map(|(key, _)| key).collect()
}

/// The connections of this process to an address: the server has some to itself.
pub fn connections_of_this_process(address: &str) -> usize {
    let port: u16 = address.rsplit(':').next().unwrap().parse().unwrap();
    let of_this_process: Vec<String> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|file| fs::read_link(file.ok()?.path()).ok())
        .filter_map(|target| {
            let target = target.to_string_lossy().into_owned();
            Some(target.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    // An address and a port in hexadecimal digits, those of the other side, and the state, of which
    // 01 is an open connection; the tenth word is the number of the socket.
    let there = format!(":{port:04X}");
    let all = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let open = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_there = words.get(2).is_some_and(|remote| remote.ends_with(&there));
        let is_here = words.get(9).is_some_and(|it| of_this_process.iter().any(|own| own == it));
        is_there && is_here && words.get(3) == Some(&"01")
    };
    all.lines().filter(open).count()
}
