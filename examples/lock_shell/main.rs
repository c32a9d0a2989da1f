//! Keyed locks on the command line, for two terminals that compete for a key:
//!
//! ```sh
//! cargo run --example lock_shell -- --url redis://localhost
//! > take wallet:17 --hold 60
//! acquired wallet:17 with token 1774080000000, for at most 60s
//!
//! cargo run --example lock_shell -- --url redis://localhost inspect wallet:17
//! cargo run --example lock_shell -- --url redis://localhost take wallet:17 --wait 60
//! ```
//!
//! With a command on the command line, the program runs that command. Without one, it
//! reads commands from stdin, one per line. `--config FILE` uses the locks of the default
//! shard of a configuration instead of `--url`. The servers are those of the default features, Redis
//! (`redis://`) and etcd (`etcd://`).

use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use ekbatan::config::{LockProviderKind, LockSettings};
use ekbatan::lock::{Lease, LockError, LockKey, LockProvider, LockRegistry, LockServers};
use ekbatan::prelude::*;
use ekbatan_lock_etcd::WithEtcd;
use ekbatan_lock_redis::WithRedis;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

type Failure = Box<dyn std::error::Error>;

/// The lock servers of the shell.
struct AllServers;

impl LockServers for AllServers {
    async fn open(settings: &LockSettings) -> Result<LockProvider, LockError> {
        if settings.provider == LockProviderKind::Etcd {
            return WithEtcd::open(settings).await;
        }
        WithRedis::open(settings).await
    }
}

#[derive(Parser)]
struct ShellArgs {
    /// A configuration file, instead of --url.
    #[arg(long, conflicts_with_all = ["provider", "url", "strategy", "namespace", "zone"])]
    config: Option<PathBuf>,
    /// As in `lock-config`: in-process, postgres, mysql, mariadb, sqlite, redis or etcd.
    #[arg(long, required_unless_present_any = ["config", "url"])]
    provider: Option<String>,
    /// The URL of the server.
    #[arg(long)]
    url: Option<String>,
    /// lease or session.
    #[arg(long)]
    strategy: Option<String>,
    /// Redis and etcd: the prefix of all keys.
    #[arg(long)]
    namespace: Option<String>,
    /// The zone of this process.
    #[arg(long)]
    zone: Option<String>,
    /// Term of a lease in seconds. The shell renews its leases; if it dies, its keys are free after that
    /// time.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    term: u64,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Acquires a key and holds it until it is released or the input ends.
    Take {
        key: String,
        /// Maximum wait in seconds.
        #[arg(long, default_value_t = 10)]
        wait: u64,
        /// Maximum hold in seconds.
        #[arg(long, default_value_t = 300)]
        hold: u64,
    },
    /// Releases a key that this shell holds.
    Release { key: String },
    /// Shows the holder of a key.
    Inspect { key: String },
    /// Ends another holder's lease.
    Force { key: String, why: Vec<String> },
    /// Lists the keys that this shell holds.
    List,
    /// Releases all keys and exits.
    Quit,
}

/// One line of input.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct InputLine {
    #[command(subcommand)]
    command: Command,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(ShellArgs::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lock_shell: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the shell. Returns whether the single command succeeded.
async fn run(mut options: ShellArgs) -> Result<bool, Failure> {
    let command = options.command.take();
    let term = Duration::from_secs(options.term);
    let locks = LockRegistry::<AllServers>::connect(&config(options)?).await?;
    let mut shell = Shell { locks, term, held: BTreeMap::new() };
    let done = match command {
        None => {
            shell.prompt().await;
            true
        }
        Some(command) => {
            let takes = matches!(command, Command::Take { .. });
            let done = shell.execute(command).await?;
            if takes && done {
                while lines().recv().await.is_some() {}
            }
            done
        }
    };
    shell.end().await;
    Ok(done)
}

fn config(options: ShellArgs) -> Result<EkbatanConfig, Failure> {
    if let Some(file) = options.config {
        return Ok(EkbatanConfig::load(file)?);
    }
    // A configuration needs a primary, but nothing connects to this one.
    let mut loader = EkbatanConfig::loader()
        .yaml("ekbatan: {configs: {primary-config: {url: 'sqlite:unused.db'}}}");
    for (key, value) in [
        ("provider", options.provider),
        ("url", options.url),
        ("strategy", options.strategy),
        ("namespace", options.namespace),
        ("zone", options.zone),
    ] {
        if let Some(value) = value {
            loader = loader.set(&format!("ekbatan.configs.lock-config.{key}"), value);
        }
    }
    Ok(loader.load()?)
}

struct Shell {
    locks: LockRegistry<AllServers>,
    /// The term of its leases.
    term: Duration,
    /// The keys that this shell holds, each with the task that reports the loss of its
    /// lease.
    held: BTreeMap<String, (Lease, JoinHandle<()>)>,
}

impl Shell {
    async fn prompt(&mut self) {
        let mut lines = lines();
        loop {
            if std::io::stdin().is_terminal() {
                print!("> ");
                let _ = std::io::stdout().flush();
            }
            let Some(line) = lines.recv().await else { return };
            if line.trim().is_empty() {
                continue;
            }
            match InputLine::try_parse_from(line.split_whitespace()) {
                Ok(InputLine { command: Command::Quit }) => return,
                Ok(InputLine { command }) => {
                    if let Err(error) = self.execute(command).await {
                        println!("{error}");
                    }
                }
                Err(usage) => println!("{usage}"),
            }
        }
    }

    async fn execute(&mut self, command: Command) -> Result<bool, LockError> {
        match command {
            Command::Take { key, wait, hold } => {
                let (wait, hold) = (Duration::from_secs(wait), Duration::from_secs(hold));
                let options = LockOptions::wait(wait).hold(hold).renewed(self.term.min(hold));
                match self.locks.take(&LockKey::named(&key), &options).await? {
                    Some(lease) => self.keep(key, lease),
                    None => {
                        println!("busy {key}");
                        return Ok(false);
                    }
                }
            }
            Command::Release { key } => match self.held.remove(&key) {
                Some((lease, watch)) => {
                    watch.abort();
                    if lease.release().await {
                        println!("released {key}");
                    } else {
                        println!("{key} was no longer held by this shell");
                    }
                }
                None => println!("{key} is not held by this shell"),
            },
            Command::Inspect { key } => match self.locks.inspect(&LockKey::named(&key)).await? {
                Some(holder) => {
                    // A session lock has no maximum hold time.
                    let left = holder.remaining.map(|left| format!(", {left:?} left"));
                    // Not every server knows since when.
                    let since = holder.held.map(|since| format!(", for {since:?} so far"));
                    println!(
                        "{key} is held by {}{}{}",
                        holder.holder,
                        since.unwrap_or_default(),
                        left.unwrap_or_default()
                    );
                }
                None => println!("{key} is free"),
            },
            Command::Force { key, why } => {
                let forced =
                    self.locks.force_release(&LockKey::named(&key), &why.join(" ")).await?;
                println!("{} {key}", if forced { "ended the lease on" } else { "no holder of" });
                return Ok(forced);
            }
            Command::List => {
                for (key, (lease, _)) in &self.held {
                    println!("{key} with token {}, {:?} left", lease.token(), lease.remaining());
                }
            }
            Command::Quit => {}
        }
        Ok(true)
    }

    fn keep(&mut self, key: String, lease: Lease) {
        println!(
            "acquired {key} with token {}, for at most {:?}",
            lease.token(),
            lease.remaining()
        );
        let (watched, name) = (lease.clone(), key.clone());
        let watch = tokio::spawn(async move {
            println!("lost {name}: {}", watched.lost().await);
        });
        self.held.insert(key, (lease, watch));
    }

    /// Releases all keys. `close` alone would wait for work that still holds a key.
    async fn end(self) {
        for (lease, watch) in self.held.into_values() {
            watch.abort();
            lease.release().await;
        }
        self.locks.close().await;
    }
}

/// The lines of stdin until its end. They are read on a thread, because a read of stdin
/// cannot be cancelled.
fn lines() -> UnboundedReceiver<String> {
    let (typed, lines) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if typed.send(line).is_err() {
                return;
            }
        }
    });
    lines
}
