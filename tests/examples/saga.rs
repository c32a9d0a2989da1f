//! The saga of transfers: whatever happens, each of them ends as its offer did, and no money is lost.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use ekbatan_testkit::{MariaDbServer, MySqlServer, PostgresServer};
use support::soak;

use crate::program::Program;

/// Two databases that outlive the program, and the file that names them.
struct Pair {
    folder: tempfile::TempDir,
}

impl Pair {
    fn files() -> Self {
        Self::of(|folder| ["poland", "mexico"].map(|name| format!("sqlite:{folder}/{name}.db")))
    }

    fn of(urls: impl FnOnce(&str) -> [String; 2]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let urls = urls(&folder.path().display().to_string());
        let group = |n: usize| {
            let url = &urls[n];
            // The databases of a MySQL server share one `eventlog`, unless each names its own.
            let eventlog = match url.rsplit_once('/') {
                Some((_, name)) if url.contains("mysql") || url.contains("mariadb") => {
                    format!(", eventlog: {name}_log")
                }
                _ => String::new(),
            };
            let primary = format!("configs: {{primary-config: {{url: '{url}'{eventlog}}}}}");
            format!("    - {{group: {n}, name: shard-{n}, members: [{{member: 0, {primary}}}]}}\n")
        };
        let head = "ekbatan:\n  sharding:\n    default-shard: {group: 0, member: 0}\n    groups:\n";
        let yaml = format!("{head}{}{}", group(0), group(1));
        std::fs::write(folder.path().join("saga.yml"), yaml).unwrap();
        Self { folder }
    }

    fn program(&self) -> Program {
        Program::named("transfer_saga").arg("--config").arg(self.folder.path().join("saga.yml"))
    }

    /// Runs the program to its end. Returns how many transfers were completed and returned.
    fn run(&self, arguments: &[&str]) -> (u32, u32) {
        let output = self.program().args(arguments).run();
        let last = output.lines().last().unwrap_or_default();
        let words: Vec<_> = last.split_whitespace().collect();
        let ["5.", completed, "transfers", "completed,", returned, "returned,", sum, ..] =
            words[..]
        else {
            panic!("{output}");
        };
        assert!(sum == "2000" || sum == "2000.00", "{output}");
        (completed.parse().unwrap(), returned.parse().unwrap())
    }
}

async fn two_postgres() -> Pair {
    let server = PostgresServer::shared().await.unwrap();
    let urls = [server.create_database().await.unwrap(), server.create_database().await.unwrap()];
    Pair::of(|_| urls)
}

async fn mysql_and_mariadb() -> Pair {
    let (mysql, mariadb) = (MySqlServer::shared().await, MariaDbServer::shared().await);
    let urls = [
        mysql.unwrap().create_database().await.unwrap(),
        mariadb.unwrap().create_database().await.unwrap(),
    ];
    Pair::of(|_| urls)
}

#[test]
fn transfer_saga_counts_its_own_wallets_only() {
    let pair = Pair::files();
    let others = Program::named("sharded_wallet").arg("--config");
    others.arg(pair.folder.path().join("saga.yml")).run();
    let (completed, returned) = pair.run(&["--transfers", "2", "--open-for", "10"]);
    assert_eq!(completed + returned, 2);
}

/// The time of the receiver is over at once, and she answers at once.
fn answers_race_with_timeouts(pair: &Pair) {
    let (completed, returned) = pair.run(&["--transfers", "60", "--open-for", "0"]);
    assert_eq!(completed + returned, 60);
}

/// It is killed several times, once when all of its transfers are sent and otherwise at a random moment, and goes on.
fn goes_on_after_kills(pair: &Pair) {
    let mut sent = 0;
    for round in 0..soak::rounds(4, 50) {
        let mut program = pair.program().args(&["--transfers", "30"]).into_command();
        let running = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut running = running.unwrap();
        if round == 0 {
            let mut lines = BufReader::new(running.stdout.as_mut().unwrap()).lines();
            // Without such a line it has ended by itself.
            let _are_all_sent = lines.any(|line| line.unwrap().starts_with("3. All are sent"));
        } else {
            std::thread::sleep(Duration::from_millis(fastrand::u64(200..2_500)));
        }
        running.kill().unwrap();
        let ended = running.wait_with_output().unwrap();
        let by_itself = ended.status.code().is_some_and(|code| code != 0);
        assert!(!by_itself, "it ended by itself: {ended:?}");
        sent += 30;
    }
    let (completed, returned) = pair.run(&["--transfers", "10"]);
    assert!((30 + 10..=sent + 10).contains(&(completed + returned)), "{completed}, {returned}");
}

#[test]
fn transfer_saga_races_with_its_timeouts_on_two_files() {
    answers_race_with_timeouts(&Pair::files());
}

#[tokio::test]
async fn transfer_saga_races_with_its_timeouts_on_two_postgres_databases() {
    answers_race_with_timeouts(&two_postgres().await);
}

#[tokio::test]
async fn transfer_saga_races_with_its_timeouts_on_mysql_and_mariadb() {
    answers_race_with_timeouts(&mysql_and_mariadb().await);
}

#[test]
fn transfer_saga_goes_on_after_kills_on_two_files() {
    goes_on_after_kills(&Pair::files());
}

#[tokio::test]
async fn transfer_saga_goes_on_after_kills_on_two_postgres_databases() {
    goes_on_after_kills(&two_postgres().await);
}

#[tokio::test]
async fn transfer_saga_goes_on_after_kills_on_mysql_and_mariadb() {
    goes_on_after_kills(&mysql_and_mariadb().await);
}

#[test]
fn transfer_saga_names_a_configuration_that_is_missing() {
    let program = Program::named("transfer_saga").args(&["--config", "nowhere.yml"]);
    assert!(program.fail().contains("nowhere.yml"));
}
