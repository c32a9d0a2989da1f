//! Keyed locks from the command line, so that two terminals can play against each other:
//!
//! ```sh
//! cargo run --example lock_shell -- --url redis://localhost
//! > take wallet:17 --hold 60
//! taken wallet:17 by token 1774080000000, for 60s at most
//!
//! cargo run --example lock_shell -- --url redis://localhost inspect wallet:17
//! cargo run --example lock_shell -- --url redis://localhost take wallet:17 --wait 60
//! ```
//!
//! With a command it does that one; without, it reads commands line by line. `--config FILE`
//! takes the locks of the default shard of a configuration instead of an address.

use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use ekbatan::lock::{Lease, LockError, LockKey};
use ekbatan::prelude::*;
// In an application, `ekbatan::lock::KeyedLocks` with the feature `redis`.
use ekbatan_lock_redis::KeyedLocks;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

/// A lease here is renewed by this, so that the end of the shell frees its keys soon.
const TERM: Duration = Duration::from_secs(3);

type Failure = Box<dyn std::error::Error>;

#[derive(Parser)]
struct Options {
    /// A configuration, instead of an address.
    #[arg(long, conflicts_with_all = ["provider", "url", "strategy", "namespace", "zone"])]
    config: Option<PathBuf>,
    /// As in `lock-config`: in-process, postgres or redis.
    #[arg(long, required_unless_present_any = ["config", "url"])]
    provider: Option<String>,
    /// The address of the server.
    #[arg(long)]
    url: Option<String>,
    /// lease or session.
    #[arg(long)]
    strategy: Option<String>,
    /// Redis: what the names of keys begin with.
    #[arg(long)]
    namespace: Option<String>,
    /// The zone of this process.
    #[arg(long)]
    zone: Option<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Takes a key, and holds it until it is released, or up to the end of the input.
    Take {
        key: String,
        /// Seconds to wait at most.
        #[arg(long, default_value_t = 10)]
        wait: u64,
        /// Seconds to hold at most.
        #[arg(long, default_value_t = 300)]
        hold: u64,
    },
    /// Gives a key back that this shell holds.
    Release { key: String },
    /// Says who holds a key.
    Inspect { key: String },
    /// Ends somebody's lease.
    Force { key: String, why: Vec<String> },
    /// Lists what this shell holds.
    List,
    /// Gives everything back and ends.
    Quit,
}

/// A line of the prompt.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Options::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lock_shell: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the one command did what it was to do.
async fn run(mut options: Options) -> Result<bool, Failure> {
    let command = options.command.take();
    let locks = KeyedLocks::connect(&config(options)?).await?;
    let mut shell = Shell { locks, held: BTreeMap::new() };
    let done = match command {
        None => {
            shell.prompt().await;
            true
        }
        Some(command) => {
            let takes = matches!(command, Command::Take { .. });
            let done = shell.obey(command).await?;
            if takes && done {
                while lines().recv().await.is_some() {}
            }
            done
        }
    };
    shell.locks.close().await;
    Ok(done)
}

fn config(options: Options) -> Result<EkbatanConfig, Failure> {
    if let Some(file) = options.config {
        return Ok(EkbatanConfig::load(file)?);
    }
    // A primary is needed, and nobody connects to it.
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
    locks: KeyedLocks,
    /// What is held, each with the task that tells of its loss.
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
            match Line::try_parse_from(line.split_whitespace()) {
                Ok(Line { command: Command::Quit }) => return,
                Ok(Line { command }) => {
                    if let Err(error) = self.obey(command).await {
                        println!("{error}");
                    }
                }
                Err(usage) => println!("{usage}"),
            }
        }
    }

    async fn obey(&mut self, command: Command) -> Result<bool, LockError> {
        match command {
            Command::Take { key, wait, hold } => {
                let (wait, hold) = (Duration::from_secs(wait), Duration::from_secs(hold));
                let options = LockOptions::wait(wait).hold(hold).renewed(TERM.min(hold));
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
                    match lease.release().await {
                        true => println!("released {key}"),
                        false => println!("{key} was no longer held here"),
                    }
                }
                None => println!("{key} is not held here"),
            },
            Command::Inspect { key } => match self.locks.inspect(&LockKey::named(&key)).await? {
                Some(holder) => {
                    // What is held by a session is bounded by its holder alone.
                    let left = holder.remaining.map(|left| format!(", {left:?} left"));
                    let since = holder.held.unwrap_or_default();
                    println!(
                        "{key} is held by {}, for {since:?} by now{}",
                        holder.holder,
                        left.unwrap_or_default()
                    );
                }
                None => println!("{key} is free"),
            },
            Command::Force { key, why } => {
                let forced =
                    self.locks.force_release(&LockKey::named(&key), &why.join(" ")).await?;
                println!("{} {key}", if forced { "ended the lease on" } else { "nobody held" });
                return Ok(forced);
            }
            Command::List => {
                for (key, (lease, _)) in &self.held {
                    println!("{key} by token {}, {:?} left", lease.token(), lease.remaining());
                }
            }
            Command::Quit => {}
        }
        Ok(true)
    }

    fn keep(&mut self, key: String, lease: Lease) {
        println!("taken {key} by token {}, for {:?} at most", lease.token(), lease.remaining());
        let (watched, name) = (lease.clone(), key.clone());
        let watch = tokio::spawn(async move {
            println!("lost {name}: {}", watched.lost().await);
        });
        self.held.insert(key, (lease, watch));
    }
}

/// What is typed, up to its end. A thread of its own reads, for that cannot be broken off.
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
