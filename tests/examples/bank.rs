//! Banks that send orders to a settlement which may be away at any time, and remember the answers.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::ScratchDatabase;
use uuid::Uuid;

use super::program::Program;

/// How long answers may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A settlement that takes orders.
pub struct Running {
    child: Child,
    pub address: String,
}

impl Running {
    pub fn start(program: Program) -> Self {
        let mut command = program.into_command();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let address = address.unwrap_or_else(|| panic!("it does not say where: {line}")).to_owned();
        Self { child, address }
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn get(&self, path: &str) -> String {
        let (status, body) = request(&self.address, "GET", path, "").unwrap();
        assert_eq!(status, "200", "{body}");
        body
    }

    /// Sends what may be an order. Answers the status and the body.
    pub fn post(&self, body: &str) -> (String, String) {
        request(&self.address, "POST", "/orders", body).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn request(
    address: &str,
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<(String, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let cut_short = || std::io::Error::other("the answer was cut short");
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(cut_short)?;
    let status = head.split(' ').nth(1).ok_or_else(cut_short)?;
    Ok((status.to_owned(), body.to_owned()))
}

/// What the banks were answered, by the ids of the orders.
pub struct Answers(BTreeMap<Uuid, String>);

impl Answers {
    /// Asserts that every order ended as it was answered, and that there is no other one.
    pub fn assert_ended_so(&self, database: &str) {
        let orders = std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let select = async {
                    ScratchDatabase::at(database).select(&["id", "state"], "FROM orders").await
                };
                runtime.unwrap().block_on(select)
            });
            reading.join().unwrap()
        });
        let found: BTreeMap<Uuid, String> = orders
            .into_iter()
            .map(|row| match &row[..] {
                [Some(id), Some(state)] => (id.parse().unwrap(), state.clone()),
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = self.0.iter().map(|(id, answer)| {
            let end = if answer == "PENDING" { "EMITTED" } else { answer };
            (*id, end.to_owned())
        });
        assert_eq!(found, expected.collect());
        let late = found.values().filter(|state| *state == "REJECTED_CUTOFF").count();
        println!("{} orders, {late} of them late", found.len());
    }
}

/// Banks that send orders one after another.
pub struct Banks {
    address: Arc<Mutex<Option<String>>>,
    /// How many orders were answered.
    answered: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<(Uuid, String)>>>,
}

impl Banks {
    pub fn start(count: usize) -> Self {
        let (address, stop) = (Arc::<Mutex<Option<String>>>::default(), Arc::default());
        let answered = Arc::<AtomicUsize>::default();
        let threads = (1..=count).map(|n| {
            let (address, stop, answered) = (address.clone(), Arc::clone(&stop), answered.clone());
            let bank = format!("bank-{n:02}");
            std::thread::spawn(move || send_orders(&bank, &address, &stop, &answered))
        });
        Self { threads: threads.collect(), address, answered, stop }
    }

    /// Waits until the banks have so many further answers.
    pub fn wait_for(&self, answers: usize) {
        let (began, before) = (Instant::now(), self.answered.load(Ordering::SeqCst));
        while self.answered.load(Ordering::SeqCst) < before + answers {
            assert!(began.elapsed() < PATIENCE, "the banks get no answers");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Says where the settlement is.
    pub fn send_to(&self, address: Option<String>) {
        *self.address.lock().unwrap() = address;
    }

    /// Waits until each bank has an answer to its last order.
    pub fn stop(self) -> Answers {
        self.stop.store(true, Ordering::SeqCst);
        let answers = self.threads.into_iter().flat_map(|thread| thread.join().unwrap());
        Answers(answers.collect())
    }
}

/// Sends orders until told to stop. An order that was not answered is sent again, with its id.
fn send_orders(
    bank: &str,
    address: &Mutex<Option<String>>,
    stop: &AtomicBool,
    answered: &AtomicUsize,
) -> Vec<(Uuid, String)> {
    let mut answers = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let Some(window) = at(address, |address| newest_window(address, bank)) else { continue };
        let id = Uuid::now_v7();
        let amount = format!("{}.{:02}", fastrand::u32(1..1_000), fastrand::u32(0..100));
        let order = json!({"id": id, "bank": bank, "window": window, "amount": amount}).to_string();
        // Some take their time, so that the window closes meanwhile.
        std::thread::sleep(Duration::from_millis(if fastrand::u8(..) < 20 { 1_000 } else { 10 }));
        let state = loop {
            let answer = at(address, |address| request(address, "POST", "/orders", &order).ok());
            match answer.as_ref().map(|(status, body)| (&**status, &**body)) {
                Some(("202" | "409", body)) => {
                    let answer: Value = serde_json::from_str(body).unwrap();
                    break answer["state"].as_str().unwrap().to_owned();
                }
                Some((status, body)) if status != "503" => panic!("{status}: {body}"),
                _ => {}
            }
        };
        answers.push((id, state));
        answered.fetch_add(1, Ordering::SeqCst);
    }
    answers
}

/// Asks the settlement. After a failure there is a pause.
fn at<T>(address: &Mutex<Option<String>>, ask: impl Fn(&str) -> Option<T>) -> Option<T> {
    let known = address.lock().unwrap().clone();
    let answer = known.and_then(|address| ask(&address));
    if answer.is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
    answer
}

/// The open window of a bank that closes first.
fn newest_window(address: &str, bank: &str) -> Option<String> {
    let (status, body) = request(address, "GET", "/state", "").ok()?;
    let state: Value = serde_json::from_str(&body).ok().filter(|_| status == "200")?;
    let windows = state["windows"].as_array()?;
    let open = windows.iter().filter(|window| window["bank"] == bank && window["state"] == "OPEN");
    let first = open.min_by_key(|window| window["cutoff"].as_str().map(str::to_owned))?;
    Some(first["key"].as_str()?.to_owned())
}
