//! How every order ended.

use std::time::{Duration, Instant};

use ekbatan::prelude::*;

use crate::Failure;
use crate::args::SettlementArgs;
use crate::check::Books;
use crate::demo::{Sent, differences};
use crate::order::OrderState;

/// How many faults are printed.
const SHOWN: usize = 10;

/// Waits until every order has ended, prints how, and checks it. The naive variant leaves some for ever;
/// there it waits until the windows are closed.
pub async fn wait_and_check(
    args: &SettlementArgs,
    databases: &Databases,
    sent: &[Sent],
) -> Result<(), Failure> {
    println!("3. Waiting for the last orders.");
    let (patience, began) = (Duration::from_secs(args.patience.into()), Instant::now());
    let (books, read_at) = loop {
        let (now, books) = (Utc::now(), Books::read(databases).await?);
        let is_done = if args.naive { books.are_closed(now) } else { books.are_settled(now) };
        if is_done || began.elapsed() > patience {
            break (books, now);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    println!("4. So the orders ended:\n{books}");
    let [emitted, late] =
        [OrderState::Emitted, OrderState::RejectedCutoff].map(|state| books.sum(state));
    println!("   emitted {emitted}, refused {late}");
    let mut faults = books.faults();
    faults.extend(differences(sent, &books));
    // By the time of the books: the cutoff of another window, without orders, may have come since.
    if !books.are_settled(read_at) {
        faults.push("not every order has ended".to_owned());
    }
    if faults.is_empty() {
        println!("5. Every order has ended as it was answered, once.");
        return Ok(());
    }
    println!("5. Wrong:");
    faults.iter().take(SHOWN).for_each(|fault| println!("   {fault}"));
    if faults.len() > SHOWN {
        println!("   and {} more", faults.len() - SHOWN);
    }
    Err(format!("{} thing(s) are wrong", faults.len()).into())
}
