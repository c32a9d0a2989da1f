//! Tests of what depends on the process: how it ends, and its environment.
//!
//! Each test has two parts. The first runs the same test again in a child process, see
//! [`alone`], which executes the second part.

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

/// Deadline for what takes only a moment on a working machine.
const TIMEOUT: Duration = Duration::from_secs(120);
const MARK: &str = "server: ";
/// The second part prints this when it has finished.
const FINISHED: &str = "second part finished";
/// In a child process, this variable names the test that started it.
const ALONE: &str = "EKBATAN_TEST_ALONE";

/// A child process that runs the second part of a test of this binary.
fn alone(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ALONE, test);
    command
}

/// Whether this process runs the second part of `test`.
fn is_alone(test: &str) -> bool {
    std::env::var_os(ALONE).is_some_and(|alone| alone == test)
}

/// Runs a second part to its end.
fn run_to_end(mut alone: Command) {
    let output = alone.output().unwrap();
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    // A process that found no test to run would succeed too.
    assert!(output.status.success() && stdout.contains(FINISHED), "{stdout}{stderr}");
}

fn lines_of(child: &mut Child) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(child.stdout.take().unwrap()).lines()
}

/// The URL of the server that the child process started.
fn server_url(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    lines
        .find_map(|line| Some(line.unwrap().split_once(MARK)?.1.to_owned()))
        .expect("the child prints the URL of its server")
}

async fn postmaster_and_folder(url: &str) -> (String, PathBuf) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let data: String =
        sqlx::query_scalar("SHOW data_directory").fetch_one(&mut connection).await.unwrap();
    let lock = fs::read_to_string(Path::new(&data).join("postmaster.pid")).unwrap();
    let folder = Path::new(&data).parent().unwrap().to_owned();
    (lock.lines().next().unwrap().to_owned(), folder)
}

/// Whether a process runs. A zombie does not.
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
    assert!(tokio::time::timeout(TIMEOUT, wait).await.is_ok(), "{what}");
}

/// A folder for the temporary folders of a child process. The user that runs servers may
/// enter it.
fn folder_for_folders() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

/// Whether the command line of any running process contains `folder`.
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
    let url = server_url(&mut lines_of(&mut child));
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
    // Each of these files appears later than the one before. Earlier than the first there
    // is only an empty folder, created a moment before the reaper that removes it.
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
    // Once during the preparation, and once while the server runs.
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

/// Kills the second part of `test` when the file `sign` appears in its server's folder,
/// or when the server accepts connections. Then waits until nothing is left.
async fn leaves_nothing_when_killed(test: &str, sign: Option<&str>) {
    let folders = folder_for_folders();
    let mut child =
        alone(test).env("TMPDIR", folders.path()).stdout(Stdio::piped()).spawn().unwrap();
    match sign {
        None => drop(server_url(&mut lines_of(&mut child))),
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
async fn a_cancelled_start_leaves_nothing() {
    const TEST: &str = "a_cancelled_start_leaves_nothing";
    if is_alone(TEST) {
        return cancel_server_starts().await;
    }
    let folders = folder_for_folders();
    let mut alone = alone(TEST);
    alone.env("TMPDIR", folders.path());
    run_to_end(alone);
}

/// Needs its own folder for temporary folders.
async fn cancel_server_starts() {
    let folders = std::env::temp_dir();
    for polls in [1, 2, 3, 5] {
        drop(drop_at_poll(polls, PostgresServer::start()).await);
        until("the folder goes", || is_empty(&folders)).await;
        until("the processes end", || !is_in_use(&folders)).await;
    }
    println!("{FINISHED}");
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
    let url = server_url(&mut lines);
    let (postmaster, folder) = postmaster_and_folder(&url).await;
    drop(child.stdin.take());
    // No process that the child started keeps the output open.
    assert_eq!(lines.filter(Result::is_err).count(), 0);
    assert!(child.wait().unwrap().success());
    until("the server ends", || !runs(&postmaster)).await;
    until("its folder goes", || !folder.exists()).await;
}

async fn start_the_shared_server_and_return() {
    let server = PostgresServer::shared().await.unwrap();
    println!("{MARK}{}", server.url("postgres"));
    // The first part inspects the server before this process ends.
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
    run_to_end(alone);
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
    println!("{FINISHED}");
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
    run_to_end(alone);
}

async fn find_no_server() {
    let error = PostgresServer::start().await.unwrap_err();
    assert!(matches!(error, ServerError::NoProgramsIn { .. }), "{error}");
    assert!(error.to_string().contains("EKBATAN_POSTGRES_BIN"));
    println!("{FINISHED}");
}
