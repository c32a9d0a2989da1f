//! One process of a contest. It connects, warms up, says that it is ready, waits for the word
//! to go, and writes down when it had the key.
//!
//! The two words come with the ports of [`Turns`], its own and that of the other process.

use std::io::{Write, stdin, stdout};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::contender::Contender;
use super::process;
use super::timeline::{Clock, Section};
use super::turns::Turns;
use super::{Measure, Mode, Provider};
use crate::Failure;

/// What a process says when it can begin.
pub const READY: &str = "ready";
/// What it is told then.
pub const GO: &str = "go";

/// How long contenders run before they are measured.
const WARM_UP: Duration = Duration::from_millis(300);

/// What one process has to do.
#[derive(clap::Args)]
pub struct ChildOptions {
    #[arg(long, value_enum)]
    provider: Provider,
    #[arg(long, value_enum)]
    measure: Measure,
    #[arg(long, value_enum)]
    mode: Mode,
    #[arg(long)]
    seconds: u64,
    #[arg(long)]
    address: String,
}

/// Contends, as one process of several.
pub async fn run(options: &ChildOptions) -> Result<(), Failure> {
    let count = options.measure.contenders();
    let contenders = options.provider.contenders(options.mode, &options.address, count).await?;
    let hold = options.measure.hold();
    let (contenders, _) = contend(contenders, WARM_UP, hold, None).await?;
    let mut turns = Turns::open().await?;
    say(format!("{READY} {}\n", turns.port()?).as_bytes())?;
    // Whoever started this process may be gone instead.
    let word = tokio::task::spawn_blocking(|| {
        let mut word = String::new();
        stdin().read_line(&mut word).map(|_| word)
    });
    let word = word.await??;
    let other = port_after(&word, GO).ok_or("nobody said go")?;
    let turns = match options.measure {
        Measure::Handoff => {
            turns.meet(other);
            Some(Arc::new(turns))
        }
        _ => None,
    };
    let seconds = Duration::from_secs(options.seconds);
    let (contenders, sections) = contend(contenders, seconds, hold, turns).await?;
    say(&process::write(&sections))?;
    for contender in contenders {
        contender.close().await;
    }
    Ok(())
}

/// The port that comes with a word.
pub fn port_after(line: &str, word: &str) -> Option<u16> {
    line.trim().strip_prefix(word)?.trim().parse().ok()
}

fn say(what: &[u8]) -> std::io::Result<()> {
    let mut stdout = stdout().lock();
    stdout.write_all(what)?;
    stdout.flush()
}

/// Has all of them contend at once, each in a task of its own.
async fn contend(
    contenders: Vec<Contender>,
    lasts: Duration,
    hold: Duration,
    turns: Option<Arc<Turns>>,
) -> Result<(Vec<Contender>, Vec<Section>), Failure> {
    let clock = Clock::start();
    let until = Instant::now() + lasts;
    let mut tasks = JoinSet::new();
    for mut contender in contenders {
        let turns = turns.clone();
        tasks.spawn(async move {
            let turns = turns.as_deref();
            let mut sections = Vec::new();
            while Instant::now() < until {
                sections.push(section(&mut contender, clock, hold, turns).await?);
                if let Some(turns) = turns {
                    turns.await_other(until).await?;
                }
            }
            Ok::<_, Failure>((contender, sections))
        });
    }
    let (mut contenders, mut sections) = (Vec::new(), Vec::new());
    while let Some(ended) = tasks.join_next().await {
        let (contender, mut of_contender) = ended??;
        contenders.push(contender);
        sections.append(&mut of_contender);
    }
    Ok((contenders, sections))
}

async fn section(
    contender: &mut Contender,
    clock: Clock,
    hold: Duration,
    turns: Option<&Turns>,
) -> Result<Section, Failure> {
    let asked = clock.now();
    let held = contender.take().await?;
    let acquired = clock.now();
    if let Some(turns) = turns {
        turns.have().await?;
    }
    if !hold.is_zero() {
        tokio::time::sleep(hold).await;
    }
    let releasing = clock.now();
    contender.give_back(held).await?;
    // Which process it was, its parent knows.
    Ok(Section { process: 0, asked, acquired, releasing, done: clock.now() })
}
