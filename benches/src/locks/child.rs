//! One child process of a measurement. It connects, warms up, reports that it is ready,
//! waits for the start, and writes down when it held the key.
//!
//! `READY` carries the port of its own [`Turns`], `GO` the port of the other process.

use std::io::{Write, stdin, stdout};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::lock_client::LockClient;
use super::options::{LockMode, Measure, Provider};
use super::protocol::{self, GO, READY, port_after};
use super::provider;
use super::timeline::{KeyHold, MachineClock};
use super::turns::Turns;
use crate::failure::Failure;

/// How long clients run before the measurement.
const WARM_UP: Duration = Duration::from_millis(300);

/// The job of one child process.
#[derive(clap::Args)]
pub struct ChildOptions {
    #[arg(long, value_enum)]
    provider: Provider,
    #[arg(long, value_enum)]
    measure: Measure,
    #[arg(long, value_enum)]
    mode: LockMode,
    #[arg(long)]
    seconds: f64,
    #[arg(long)]
    address: String,
}

/// Runs the job of a child process.
pub async fn run(options: &ChildOptions) -> Result<(), Failure> {
    let count = options.measure.clients();
    let clients =
        provider::clients(options.provider, options.mode, &options.address, count).await?;
    let hold = options.measure.hold();
    let (clients, _) = compete(clients, WARM_UP, hold, None).await?;
    let mut turns = Turns::open().await?;
    write_out(format!("{READY} {}\n", turns.port()?).as_bytes())?;
    // `read_line` also returns when the parent has exited.
    let word = tokio::task::spawn_blocking(|| {
        let mut word = String::new();
        stdin().read_line(&mut word).map(|_| word)
    });
    let word = word.await??;
    let other = port_after(&word, GO).ok_or("the parent process exited before the start")?;
    let turns = match options.measure {
        Measure::Handoff => {
            turns.set_other(other);
            Some(Arc::new(turns))
        }
        _ => None,
    };
    let seconds = Duration::from_secs_f64(options.seconds);
    let (clients, holds) = compete(clients, seconds, hold, turns).await?;
    write_out(&protocol::write(&holds))?;
    for client in clients {
        client.close().await;
    }
    Ok(())
}

fn write_out(what: &[u8]) -> std::io::Result<()> {
    let mut stdout = stdout().lock();
    stdout.write_all(what)?;
    stdout.flush()
}

/// Runs all clients at the same time, each in its own task.
async fn compete(
    clients: Vec<LockClient>,
    lasts: Duration,
    hold: Duration,
    turns: Option<Arc<Turns>>,
) -> Result<(Vec<LockClient>, Vec<KeyHold>), Failure> {
    let clock = MachineClock::start();
    let until = Instant::now() + lasts;
    let mut tasks = JoinSet::new();
    for mut client in clients {
        let turns = turns.clone();
        tasks.spawn(async move {
            let turns = turns.as_deref();
            let mut holds = Vec::new();
            while Instant::now() < until {
                holds.push(hold_once(&mut client, clock, hold, turns).await?);
                if let Some(turns) = turns {
                    turns.wait_for_other(until).await?;
                }
            }
            Ok::<_, Failure>((client, holds))
        });
    }
    let (mut clients, mut holds) = (Vec::new(), Vec::new());
    while let Some(ended) = tasks.join_next().await {
        let (client, mut of_client) = ended??;
        clients.push(client);
        holds.append(&mut of_client);
    }
    Ok((clients, holds))
}

async fn hold_once(
    client: &mut LockClient,
    clock: MachineClock,
    hold: Duration,
    turns: Option<&Turns>,
) -> Result<KeyHold, Failure> {
    let asked = clock.now();
    let held = client.acquire().await?;
    let acquired = clock.now();
    if let Some(turns) = turns {
        turns.announce().await?;
    }
    if !hold.is_zero() {
        tokio::time::sleep(hold).await;
    }
    let releasing = clock.now();
    client.release(held).await?;
    // The parent fills in the process number.
    Ok(KeyHold { process: 0, asked, acquired, releasing, done: clock.now() })
}
