//! What depends on the process: how it ends, and its environment.
//!
//! Each test here has two parts. It runs itself again in a process of its own,
//! [`alone`], where it plays the second one.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

#[cfg(feature = "mysql")]
use ekbatan_testkit::{MariaDbServer, MySqlServer};
use ekbatan_testkit::{PostgresServer, RedisServer, ServerError, drop_at_poll};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

/// How long to wait for what happens in moments unless it never does.
const PATIENCE: Duration = Duration::from_secs(120);
const MARK: &str = "server: ";
/// What a second part says when it has come to its end.
const PLAYED: &str = "played to its end";
/// Names, in a process that a test has started, that test.
const ALONE: &str = "EKBATAN_TEST_ALONE";

/// A process that runs one test of this binary, for its second part.
fn alone(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ALONE, test);
    command
}

/// Whether this process is one that `test` has started for its second part.
fn is_alone(test: &str) -> bool {
    std::env::var_os(ALONE).is_some_and(|alone| alone == test)
}

/// Waits for a second part that ends by itself.
fn plays(mut alone: Command) {
    let output = alone.output().unwrap();
    let [said, complained] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    // A process that found no test to run would be a success too.
    assert!(output.status.success() && said.contains(PLAYED), "{said}{complained}");
}

fn lines_of(child: &mut Child) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(child.stdout.take().unwrap()).lines()
}

/// The address of the server that another process says it has started.
fn said(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    lines
        .find_map(|line| Some(line.unwrap().split_once(MARK)?.1.to_owned()))
        .expect("the test says where its server is")
}

async fn postmaster_and_folder(url: &str) -> (String, PathBuf) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let data: String =
        sqlx::query_scalar("SHOW data_directory").fetch_one(&mut connection).await.unwrap();
    let lock = fs::read_to_string(Path::new(&data).join("postmaster.pid")).unwrap();
    let folder = Path::new(&data).parent().unwrap().to_owned();
    (lock.lines().next().unwrap().to_owned(), folder)
}

/// Whether a process runs; one that only waits to be collected does not.
fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let wait = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "{what}");
}

/// A temporary folder for another process's temporary folders, which the user
/// that runs servers may enter.
fn folder_for_folders() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

/// Whether any process that runs was told of `folder` when it was started.
fn is_in_use(folder: &Path) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let pid = entry.file_name();
        String::from_utf8_lossy(&arguments).contains(folder.to_str().unwrap())
            && runs(pid.to_str().unwrap())
    })
}

async fn start_a_server_and_wait_to_be_killed() {
    let server = PostgresServer::start().await.unwrap();
    wait_to_be_killed_with(&server.url("postgres")).await;
}

async fn wait_to_be_killed_with(url: &str) {
    println!("{MARK}{url}");
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_killed_process_leaves_nothing() {
    const TEST: &str = "a_killed_process_leaves_nothing";
    if is_alone(TEST) {
        return start_a_server_and_wait_to_be_killed().await;
    }
    let mut child = alone(TEST).stdout(Stdio::piped()).spawn().unwrap();
    let url = said(&mut lines_of(&mut child));
    let (postmaster, folder) = postmaster_and_folder(&url).await;
    assert!(runs(&postmaster));
    assert!(folder.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    until("the server ends", || !runs(&postmaster)).await;
    until("its folder goes", || !folder.exists()).await;
}

#[tokio::test]
async fn a_process_killed_while_it_starts_a_server_leaves_nothing() {
    const TEST: &str = "a_process_killed_while_it_starts_a_server_leaves_nothing";
    if is_alone(TEST) {
        return start_a_server_and_wait_to_be_killed().await;
    }
    // Each of these appears later than the one before. Before the first there is no more than
    // an empty folder, made a moment before the reaper that would remove it.
    for sign in ["data", "data/global/pg_control", "log", "data/postmaster.pid"] {
        let folders = folder_for_folders();
        let mut child =
            alone(TEST).env("TMPDIR", folders.path()).stdout(Stdio::null()).spawn().unwrap();
        until(sign, || {
            let mut servers = fs::read_dir(folders.path()).unwrap().flatten();
            servers.any(|server| server.path().join(sign).exists())
        })
        .await;
        child.kill().unwrap();
        child.wait().unwrap();
        until("the folder goes", || is_empty(folders.path())).await;
        until("the processes end", || !is_in_use(folders.path())).await;
    }
}

#[tokio::test]
async fn a_process_killed_with_a_replica_leaves_nothing() {
    const TEST: &str = "a_process_killed_with_a_replica_leaves_nothing";
    if is_alone(TEST) {
        let server = PostgresServer::start().await.unwrap();
        let replica = server.start_replica().await.unwrap();
        return wait_to_be_killed_with(&replica.url("postgres")).await;
    }
    leaves_nothing_when_killed(TEST, None).await;
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn a_process_killed_with_a_mariadb_leaves_nothing() {
    const TEST: &str = "a_process_killed_with_a_mariadb_leaves_nothing";
    if is_alone(TEST) {
        let server = MariaDbServer::start().await.unwrap();
        return wait_to_be_killed_with(&server.url("mysql")).await;
    }
    // Once by what prepares it, once by itself.
    leaves_nothing_when_killed(TEST, Some("data/ibdata1")).await;
    leaves_nothing_when_killed(TEST, None).await;
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn a_process_killed_with_a_mysql_leaves_nothing() {
    const TEST: &str = "a_process_killed_with_a_mysql_leaves_nothing";
    if is_alone(TEST) {
        let server = MySqlServer::start().await.unwrap();
        return wait_to_be_killed_with(&server.url("mysql")).await;
    }
    leaves_nothing_when_killed(TEST, Some("data/ibdata1")).await;
    leaves_nothing_when_killed(TEST, None).await;
}

#[tokio::test]
async fn a_process_killed_with_a_redis_leaves_nothing() {
    const TEST: &str = "a_process_killed_with_a_redis_leaves_nothing";
    if is_alone(TEST) {
        let server = RedisServer::start().await.unwrap();
        return wait_to_be_killed_with(&server.url()).await;
    }
    leaves_nothing_when_killed(TEST, None).await;
}

/// Kills the second part of `test` when a file in its server's folder appears, or
/// else when the server is there, and waits until nothing is left.
async fn leaves_nothing_when_killed(test: &str, sign: Option<&str>) {
    let folders = folder_for_folders();
    let mut child =
        alone(test).env("TMPDIR", folders.path()).stdout(Stdio::piped()).spawn().unwrap();
    match sign {
        None => drop(said(&mut lines_of(&mut child))),
        Some(sign) => {
            until(sign, || {
                let mut servers = fs::read_dir(folders.path()).unwrap().flatten();
                servers.any(|server| server.path().join(sign).exists())
            })
            .await;
        }
    }
    assert!(is_in_use(folders.path()));
    child.kill().unwrap();
    child.wait().unwrap();
    until("the folder goes", || is_empty(folders.path())).await;
    until("the processes end", || !is_in_use(folders.path())).await;
}

#[tokio::test]
async fn a_start_that_is_given_up_leaves_nothing() {
    const TEST: &str = "a_start_that_is_given_up_leaves_nothing";
    if is_alone(TEST) {
        return give_up_starting_servers().await;
    }
    let folders = folder_for_folders();
    let mut alone = alone(TEST);
    alone.env("TMPDIR", folders.path());
    plays(alone);
}

/// Expects a folder for temporary folders of its own.
async fn give_up_starting_servers() {
    let folders = std::env::temp_dir();
    for polls in [1, 2, 3, 5] {
        drop(drop_at_poll(polls, PostgresServer::start()).await);
        until("the folder goes", || is_empty(&folders)).await;
        until("the processes end", || !is_in_use(&folders)).await;
    }
    println!("{PLAYED}");
}

#[tokio::test]
async fn the_shared_server_ends_with_its_process() {
    const TEST: &str = "the_shared_server_ends_with_its_process";
    if is_alone(TEST) {
        return start_the_shared_server_and_return().await;
    }
    let mut child = alone(TEST)
        .env_remove("EKBATAN_TEST_POSTGRES_URL")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = lines_of(&mut child);
    let url = said(&mut lines);
    let (postmaster, folder) = postmaster_and_folder(&url).await;
    drop(child.stdin.take());
    // Nothing that we started keeps the output open.
    assert_eq!(lines.filter(Result::is_err).count(), 0);
    assert!(child.wait().unwrap().success());
    until("the server ends", || !runs(&postmaster)).await;
    until("its folder goes", || !folder.exists()).await;
}

async fn start_the_shared_server_and_return() {
    let server = PostgresServer::shared().await.unwrap();
    println!("{MARK}{}", server.url("postgres"));
    // So that the first part can have a look before this process ends.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[tokio::test]
async fn a_given_server_is_used_and_left_alone() {
    const TEST: &str = "a_given_server_is_used_and_left_alone";
    if is_alone(TEST) {
        return use_the_given_server().await;
    }
    let server = PostgresServer::start().await.unwrap();
    let url = server.url("postgres");
    let mut alone = alone(TEST);
    alone.env("EKBATAN_TEST_POSTGRES_URL", &url);
    plays(alone);
    PgConnection::connect(&url).await.unwrap();
}

async fn use_the_given_server() {
    let given = std::env::var("EKBATAN_TEST_POSTGRES_URL").unwrap();
    let server = PostgresServer::shared().await.unwrap();
    assert_eq!(server.url("postgres"), given);
    let url = server.create_database().await.unwrap();
    PgConnection::connect(&url).await.unwrap();
    assert!(matches!(server.kill().await, Err(ServerError::NotOurs { .. })));
    assert!(matches!(server.restart().await, Err(ServerError::NotOurs { .. })));
    println!("{PLAYED}");
}

#[tokio::test]
async fn a_missing_server_is_an_error() {
    const TEST: &str = "a_missing_server_is_an_error";
    if is_alone(TEST) {
        return find_no_server().await;
    }
    let empty = tempfile::tempdir().unwrap();
    let mut alone = alone(TEST);
    alone.env("EKBATAN_POSTGRES_BIN", empty.path());
    plays(alone);
}

async fn find_no_server() {
    let error = PostgresServer::start().await.unwrap_err();
    assert!(matches!(error, ServerError::NoProgramsIn { .. }), "{error}");
    assert!(error.to_string().contains("EKBATAN_POSTGRES_BIN"));
    println!("{PLAYED}");
}
