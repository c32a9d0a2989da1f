//! Puts the parts together and runs them.

use std::time::Duration;

use ekbatan::db::Dialect;
use ekbatan::jobs::windows::{Cutoffs, Window, WindowState, Windows};
use ekbatan::prelude::*;
use ekbatan_testkit::PostgresServer;
use tokio::net::TcpListener;

use crate::Failure;
use crate::args::SettlementArgs;
use crate::batch::{BatchOrders, OrderBatch};
use crate::demo::{CUTOFFS, Day, Sent};
use crate::http::{Site, serve};
use crate::import::import_slowly;
use crate::intake::AcceptOrder;
use crate::machine::Machine;
use crate::migrations::migrations;
use crate::order::Order;
use crate::report::wait_and_check;
use crate::settlement::Settlement;

/// The keys of windows. They name the date, because a key never comes again.
const KEYS: &str = "STR-D0-%Y%m%d-%Hh%Mm%S";

pub async fn run(args: SettlementArgs) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let (_server, url) = match args.database.as_deref() {
        None => (None, format!("sqlite:{}", folder.path().join("settlement.db").display())),
        Some("postgres") => {
            let server = PostgresServer::start().await?;
            let url = server.create_database().await?;
            (Some(server), url)
        }
        Some(url) => (None, url.to_owned()),
    };
    let databases = Databases::open(&url).await?;
    if args.slow_import && databases.capabilities().dialect == Dialect::Sqlite {
        return Err("--slow-import needs a server: on SQLite its transaction holds up every other one; add --database postgres".into());
    }
    databases.migrate(&migrations()).await?;
    let executor = ActionExecutor::builder(&databases, "com.example.settlement")
        .model::<Window>()
        .model::<Order>()
        .model::<OrderBatch>()
        .build()
        .await?;
    let cutoffs = Cutoffs::new(args.schedule()?, KEYS)?;
    let banks: Vec<String> = (1..=args.banks).map(|n| format!("bank-{n:02}")).collect();
    let windows = Windows::new(Settlement {
        banks: banks.clone(),
        cutoffs: (!args.finish).then(|| cutoffs.clone()),
        batch: BatchOrders { size: args.batch.into(), dies_afterwards: args.die_after_batch },
        late_check: Duration::from_secs(60),
    });
    let machine = Machine::start(&args, &executor, &windows).await?;
    // After that, because a broker may take longer to start than the first windows are open.
    windows.open_upcoming(&executor).await?;
    let sent = if args.finish {
        Vec::new()
    } else {
        let listener = TcpListener::bind(args.listen).await.map_err(|error| {
            let address = args.listen;
            format!("cannot listen at {address}: {error}; name another address with --listen")
        })?;
        let server = listener.local_addr()?;
        println!(
            "1. Taking orders at http://{server}/orders; http://{server}/ shows how far they are."
        );
        let site = Site { executor: executor.clone(), intake: AcceptOrder { naive: args.naive } };
        let serving = tokio::spawn(serve(listener, site));
        let sent = if args.demo {
            let end = (0..CUTOFFS)
                .try_fold(Utc::now(), |now, _| Some(cutoffs.after(now)?.instant))
                .ok_or("the schedule has ended")?;
            // Some orders come up to a tenth of the time between two cutoffs too late.
            let latest = args.period() / 10;
            let day = Day { server, cutoffs, banks, rate: args.rate.into(), end, latest };
            println!("2. Playing a day: {} banks, {} cutoffs.", args.banks, CUTOFFS);
            play(&args, &day, &executor).await?
        } else {
            tokio::signal::ctrl_c().await?;
            Vec::new()
        };
        serving.abort();
        sent
    };
    let checked = if args.demo || args.finish {
        wait_and_check(&args, &databases, &sent).await
    } else {
        Ok(())
    };
    machine.stop().await;
    databases.close().await;
    checked
}

/// Plays the day, with a slow import beside it if that is asked for.
async fn play(
    args: &SettlementArgs,
    day: &Day,
    executor: &ActionExecutor,
) -> Result<Vec<Sent>, Failure> {
    let import = async {
        if !args.slow_import {
            return Ok(Vec::new());
        }
        let windows = executor.databases().repository::<Window>();
        loop {
            let open = windows.find_where(Window::STATE.eq(WindowState::Open)).await?;
            let first = open.into_iter().min_by_key(|window| window.cutoff);
            let first = first.ok_or("there is no open window")?;
            // If it begins to close too early, the import is for the next one.
            if let Some(sent) = import_slowly(executor, &first).await? {
                return Ok(sent);
            }
        }
    };
    let (mut sent, imported) = tokio::try_join!(day.play(), import)?;
    sent.extend(imported);
    Ok(sent)
}
