//! The comparison of strategies: its reports are readable and no money is lost.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ekbatan_testkit::PostgresServer;
use serde_json::Value;
use support::until;

use crate::program::Program;

/// Runs the comparison briefly and returns its JSON lines. Checks that each reports correct money.
fn compare(folder: &Path, arguments: &[&str]) -> Vec<Value> {
    let json = folder.join("compare.json");
    let moment = ["--seconds", "0.2", "--warm-up", "0.1"];
    let program = Program::named("compare").args(&moment).args(arguments);
    let output = program.arg("--json").arg(&json).run();
    assert!(output.contains("Money: right in all"), "{output}");
    let lines = std::fs::read_to_string(json).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &lines {
        assert_eq!(
            (&line["bench"], &line["money_ok"]),
            (&"compare".into(), &true.into()),
            "{line}"
        );
    }
    lines
}

fn strategies(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["strategy"].as_str().unwrap()).collect()
}

#[test]
fn compare_runs_without_a_server_and_writes_every_report() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let files = [path("compare.csv"), path("compare.html"), path("compare.svg")];
    let [csv, html, svg] = &files;
    let arguments = ["--tasks", "1,4", "--csv", csv, "--html", html, "--svg", svg];
    let lines = compare(folder.path(), &arguments);
    let all = [
        "default",
        "optimistic",
        "pessimistic",
        "coalesced",
        "adaptive",
        "sqlx-for-update",
        "sqlx-version",
        "sqlx-blind",
        "sea-orm",
    ];
    assert_eq!(strategies(&lines), [all, all].concat());
    let [csv, html, svg] = files.map(|file| std::fs::read_to_string(file).unwrap());
    assert_eq!(csv.lines().count(), 1 + lines.len(), "{csv}");
    for name in all {
        assert!(csv.contains(name) && html.contains(name) && svg.contains(name), "{name}");
    }
    assert!(html.starts_with("<!doctype html>") && html.trim_end().ends_with("</html>"));
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    // The page loads nothing; its only URL names the format.
    assert!(!html.contains("http") && svg.matches("http").count() == 1);
}

#[tokio::test]
async fn compare_spreads_tasks_over_processes_on_a_given_postgres() {
    let server = PostgresServer::shared().await.unwrap();
    let url = server.create_database().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--database", &url, "--processes", "2", "--tasks", "4", "--delay-us", "100"];
    let lines = compare(folder.path(), &arguments);
    assert!(strategies(&lines).contains(&"coalesced-lease"));
    for line in &lines {
        assert!(line["round_trips"].as_f64().is_some_and(|trips| trips > 0.0), "{line}");
        assert!(line["connections"].as_u64().is_some_and(|open| open > 0), "{line}");
    }
}

/// The ids of the worker processes of a program.
fn workers_of(program: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let is_worker = |pid: &u32| {
        // After the name, which is in parentheses, come the state and the parent.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_whitespace().nth(1) == Some(&program.to_string())
    };
    all.filter_map(|of| of.file_name().to_str()?.parse().ok()).filter(is_worker).collect()
}

/// A program that ends with its handle.
struct Comparison(Child);

impl Drop for Comparison {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn compare_ends_if_one_of_its_workers_does() {
    let arguments = ["--strategy", "optimistic", "--processes", "2", "--tasks", "2"];
    // It does not end before its worker is found.
    let program = Program::named("compare").args(&arguments).args(&["--seconds", "3600"]);
    let mut command = program.into_command();
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut program = Comparison(command.spawn().unwrap());
    let pid = program.0.id();
    until("both workers run", async || workers_of(pid).len() == 2).await;
    let kill = format!("kill -s KILL {}", workers_of(pid)[0]);
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    until("the program ends", async || program.0.try_wait().unwrap().is_some()).await;
    let mut complaint = String::new();
    program.0.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    assert!(complaint.contains("a worker process exited before it had finished"), "{complaint}");
}

#[test]
fn compare_names_conflicting_arguments() {
    let cases: [(&[&str], &[&str]); 10] = [
        (&["--database", "oracle"], &["--database \"oracle\"", "postgres"]),
        (&["--lock", "postgres"], &["--lock postgres", "sqlite", "--lock process"]),
        (&["--delay-us", "5"], &["--delay-us 5", "SQLite"]),
        (&["--tasks", "2", "--processes", "3"], &["--tasks 2", "--processes 3", "raise"]),
        (&["--tasks", "2", "--processes", "2"], &["--lock process", "--lock redis"]),
        (
            &["--tasks", "2", "--processes", "2", "--strategy", "default,adaptive"],
            &["--lock process", "--strategy adaptive", "--processes 2"],
        ),
        (&["--tasks", "2,4,2"], &["--tasks names 2 twice"]),
        (&["--skew", "steep"], &["--skew", "steep", "between 0 and 5"]),
        (&["--html", "no/folder/a.html"], &["--html no/folder/a.html", "there is no such folder"]),
        (&["--csv", "tests"], &["--csv tests", "it is a folder"]),
    ];
    for (arguments, expected) in cases {
        let complaint = Program::named("compare").args(arguments).fail();
        for part in expected {
            assert!(complaint.contains(part), "{part}: {complaint}");
        }
    }
}
