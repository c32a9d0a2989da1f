//! The environment of a run: the machine, the versions, the command.

use serde::Serialize;

/// The crates whose versions are reported, from the lock file.
const CRATES: [&str; 4] = ["ekbatan", "sqlx", "sea-orm", "tokio"];
const LOCK_FILE: &str = include_str!("../../../Cargo.lock");

#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    pub cores: usize,
    pub cpu: String,
    pub kernel: String,
    pub database: String,
    pub crates: Vec<String>,
    pub command: String,
    pub date: String,
}

impl Machine {
    pub fn look(database: String) -> Self {
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: cpu(&read("/proc/cpuinfo")),
            kernel: format!(
                "{} {}",
                read("/proc/sys/kernel/ostype"),
                read("/proc/sys/kernel/osrelease")
            )
            .trim()
            .to_owned(),
            database,
            crates: CRATES.iter().filter_map(|name| version(name)).collect(),
            command: command(),
            date: chrono::Utc::now().format("%Y-%m-%d").to_string(),
        }
    }

    /// Everything in two lines.
    pub fn lines(&self) -> [String; 2] {
        let cores = if self.cores == 1 { "core" } else { "cores" };
        [
            format!("{} {cores}, {}, {}; {}", self.cores, self.cpu, self.kernel, self.date),
            format!("{}; {}", self.database, self.crates.join(", ")),
        ]
    }
}

/// The content of a file; empty if it cannot be read.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn cpu(info: &str) -> String {
    let value = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    value("model name").or_else(|| value("Hardware")).unwrap_or_else(|| "unknown CPU".to_owned())
}

fn version(name: &str) -> Option<String> {
    let package = LOCK_FILE
        .split("[[package]]")
        .find(|package| package.lines().any(|line| line == format!("name = {name:?}")))?;
    let line = package.lines().find_map(|line| line.strip_prefix("version = "))?;
    Some(format!("{name} {}", line.trim_matches('"')))
}

/// The command line as a user types it, without passwords in URLs.
fn command() -> String {
    let mut words = vec!["cargo run --release --example compare --".to_owned()];
    words.extend(std::env::args().skip(1).map(|word| without_password(&word)));
    if words.len() == 1 {
        return "cargo run --release --example compare".to_owned();
    }
    words.join(" ")
}

fn without_password(word: &str) -> String {
    let Some((before, rest)) = word.split_once("://") else { return word.to_owned() };
    match rest.rsplit_once('@') {
        Some((login, address)) => {
            let user = login.split(':').next().unwrap_or_default();
            format!("{before}://{user}@{address}")
        }
        None => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_repeated() {
        let cases = [
            ("postgres://app:s3cr@t@db:5432/shop", "postgres://app@db:5432/shop"),
            ("--database=mysql://root@db/shop", "--database=mysql://root@db/shop"),
            ("--tasks", "--tasks"),
        ];
        for (typed, shown) in cases {
            assert_eq!(without_password(typed), shown);
        }
    }

    #[test]
    fn versions_are_those_of_the_lock_file() {
        assert!(version("sqlx").unwrap().starts_with("sqlx 0."));
        assert_eq!(version("nothing-of-that-name"), None);
    }
}
