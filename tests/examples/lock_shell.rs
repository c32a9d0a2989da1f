//! Two lock shells that share the keys of one server.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};

use ekbatan_testkit::{PostgresServer, RedisServer};

use super::program::Program;

/// A shell with piped input and output. It ends with its input.
struct Shell {
    child: Child,
    output: std::io::Lines<BufReader<ChildStdout>>,
}

impl Shell {
    fn start(arguments: &[&str]) -> Self {
        let mut child = shell(arguments)
            .into_command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, output }
    }

    fn send(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Checks the start of the next line.
    fn expect_line(&mut self, start: &str) {
        let line = self.output.next().expect("a line before the end").unwrap();
        assert!(line.starts_with(start), "{line}");
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// The term is longer than a busy machine holds up a renewal, and not much longer: a holder hears of a forced
/// release when it renews its lease, after a third of the term.
fn shell(arguments: &[&str]) -> Program {
    Program::named("lock_shell").args(&["--term", "15"]).args(arguments)
}

fn play(server: &[&str]) {
    let with = |command: &[&'static str]| [server, command].concat();
    let mut first = Shell::start(server);
    first.send("take wallet:17 --wait 60");
    first.expect_line("acquired wallet:17 with token ");

    // Another process sees the holder and does not get the key.
    let output = shell(&with(&["inspect", "wallet:17"])).run();
    assert!(output.contains(&format!("process {}, for ", first.child.id())), "{output}");
    let output = shell(&with(&["take", "wallet:17", "--wait", "0"])).run_to_failure();
    assert_eq!(output, "busy wallet:17\n");

    // A waiter gets the key when it is released.
    let mut second = Shell::start(&with(&["take", "wallet:17", "--wait", "600"]));
    first.send("release wallet:17");
    first.expect_line("released wallet:17");
    second.expect_line("acquired wallet:17 with token ");
    second.end();
    let output = shell(&with(&["inspect", "wallet:17"])).run();
    assert_eq!(output, "wallet:17 is free\n");

    // A forced release ends the lease, and its holder is notified.
    first.send("take wallet:17 --wait 60");
    first.expect_line("acquired wallet:17 with token ");
    first.send("list");
    first.expect_line("wallet:17 with token ");
    let output = shell(&with(&["force", "wallet:17", "it", "hangs"])).run();
    assert_eq!(output, "ended the lease on wallet:17\n");
    first.expect_line("lost wallet:17: ");
    first.send("release wallet:17");
    first.expect_line("wallet:17 was no longer held by this shell");
    first.send("dance");
    first.expect_line("error: unrecognized subcommand 'dance'");
    first.send("quit");
    first.end();
}

#[tokio::test]
async fn lock_shells_share_keys_on_postgres() {
    let url = PostgresServer::shared().await.unwrap().create_database().await.unwrap();
    play(&["--url", &url]);
}

#[tokio::test]
async fn lock_shells_share_keys_on_redis() {
    let url = RedisServer::shared().await.unwrap().url();
    play(&["--url", &url, "--namespace", "shell"]);
}

#[tokio::test]
async fn lock_shells_share_keys_of_a_configuration_file_on_postgres() {
    let url = PostgresServer::shared().await.unwrap().create_database().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.yml");
    let yaml = format!(
        "ekbatan: {{configs: {{primary-config: {{url: '{url}'}}, lock-config: {{zone: eu}}}}}}"
    );
    std::fs::write(&file, yaml).unwrap();
    play(&["--config", file.to_str().unwrap()]);
}
