//! A process that is killed while it commits to SQLite. The test binary starts itself as that
//! process.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use ekbatan::prelude::*;
use ekbatan_testkit::TempSqlite;
use support::wallet::{Deposit, DepositMoney, Wallet};

use crate::ledger::Ledger;

const ROUNDS: usize = 20;
const URL: &str = "EKBATAN_TEST_KILLED_PROCESS_URL";

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_neither_loses_nor_repeats_a_commit() {
    if let Ok(url) = std::env::var(URL) {
        return deposit_for_ever(&url).await;
    }
    let file = TempSqlite::new().unwrap();
    let url = file.url();
    let ledger = Ledger::open(&url).await;
    ledger.open_wallets(4).await;
    let (mut tried, mut acknowledged) = (HashSet::new(), HashSet::new());
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "process::a_killed_process_neither_loses_nor_repeats_a_commit",
                "--nocapture",
            ])
            .env(URL, &url)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut note = |line: String| match line.split_once(' ') {
            Some(("try", id)) => tried.insert(id.parse::<Uuid>().unwrap()),
            Some(("ok", id)) => acknowledged.insert(id.parse::<Uuid>().unwrap()),
            _ => false,
        };
        let mut deposits = 0;
        while deposits < 40 + round * 3 {
            let line = lines.next().expect("the process runs until it is killed").unwrap();
            deposits += usize::from(line.starts_with("ok "));
            note(line);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // Lines that the process wrote before it died count, too. The last one may be cut.
        lines.map_while(Result::ok).filter(|line| line.len() >= 39).for_each(|line| _ = note(line));
    }
    let stored = ledger.rows_per_action().await;
    for id in &acknowledged {
        assert_eq!(stored.get(id), Some(&1), "{id} was acknowledged");
    }
    let deposits = stored.keys().filter(|id| tried.contains(id)).count();
    assert!(deposits >= acknowledged.len() && acknowledged.len() >= ROUNDS * 40);
    ledger.assert_sound(deposits).await;
}

async fn deposit_for_ever(url: &str) {
    let ledger = Ledger::open(url).await;
    let wallets = ledger.databases.repository::<Wallet>().find_all().await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for wallet in wallets {
        let executor = ledger.executor.clone();
        tasks.spawn(async move {
            loop {
                let call = executor
                    .execute(&DepositMoney, Deposit { wallet: wallet.id, amount: Decimal::ONE });
                let id = call.action_id();
                write_line(&format!("try {id}\n"));
                call.await.unwrap();
                write_line(&format!("ok {id}\n"));
            }
        });
    }
    tasks.join_all().await;
}

fn write_line(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).unwrap();
}
