//! The end of a process that is told to end.

use std::process::Command;
use std::time::Duration;

use futures_util::FutureExt;
use support::until;

use crate::scene::{Ledger, Scene};

on_every_database! { only sqlite: a_node_hands_back_what_it_runs_when_its_process_is_told_to_end }

async fn a_node_hands_back_what_it_runs_when_its_process_is_told_to_end(scene: &Scene) {
    let ledger = Ledger::new(|_, _| std::future::pending().boxed());
    let seen = ledger.seen();
    let node = scene.node().handler(ledger).start().await.unwrap();
    let wallets = [scene.open_wallet().await, scene.open_wallet().await];
    scene.deposit(wallets[0], 3).await;
    until("two events are being handled", async || seen.lock().unwrap().len() == 2).await;
    let running = tokio::spawn(node.run_until_signal(Duration::from_millis(10)));
    // Not before it is caught: otherwise it would end the tests.
    until("the signal is caught", async || catches_sigterm()).await;
    until("the node has ended", async || {
        let own = std::process::id().to_string();
        let sent = Command::new("kill").args(["-TERM", &own]).status().unwrap();
        assert!(sent.success());
        running.is_finished()
    })
    .await;
    assert_eq!(running.await.unwrap().unwrap().cancelled, 2);
    // They wait as if they had never begun.
    let node = scene.node().handler(Ledger::posting()).start().await.unwrap();
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallets[0]).await, [1, 2, 3, 4]);
    assert_eq!(node.handlers()[0].failed, 0);
}

/// Whether the process has a handler of its own for SIGTERM.
fn catches_sigterm() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << 14) != 0
}
