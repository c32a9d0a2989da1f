//! Events on several shards: each shard's are handled there, with their effect.

use std::time::Duration;

use ekbatan::action::Once;
use ekbatan::config::{EkbatanConfig, ShardMemberConfig};
use ekbatan::domain::{New, ShardIdentifier};
use ekbatan::events::{
    Delivered, DeliveryOperations, EventHandler, HandlerContext, HandlerOptions, RemoteCallError,
    Retention,
};
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};
use support::{Dialect, ScratchDatabase, until};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Model)]
#[model(table = "tickets", event = TicketEvent, name = "Ticket")]
struct Ticket {
    id: ShardedId<Ticket>,
    confirmed: bool,
    state: TicketState,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, State)]
enum TicketState {
    Sold,
}

#[derive(Debug, Clone, Serialize, Deserialize, Event)]
enum TicketEvent {
    #[event(name = "TicketSold")]
    Sold { ticket: Uuid },
    #[event(name = "TicketConfirmed")]
    Confirmed {},
}

struct Sell;

impl Action for Sell {
    const NAME: &'static str = "ticket.sell";
    type Params = On;
    type Output = ShardedId<Ticket>;
    type Error = ReadError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        on: &On,
    ) -> Result<ShardedId<Ticket>, ReadError> {
        let shard = ShardIdentifier::new(on.group, on.member).expect("the test names a shard");
        let id: ShardedId<Ticket> = ctx.new_sharded_id(shard);
        let ticket = Ticket { id, confirmed: false, state: TicketState::Sold };
        ctx.plan().add(New::new(ticket, TicketEvent::Sold { ticket: id.uuid() }));
        Ok(id)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct On {
    group: u32,
    member: u32,
}

struct Confirm;

#[derive(Debug, Serialize, Deserialize)]
struct Confirmation {
    ticket: Uuid,
}

impl Action for Confirm {
    const NAME: &'static str = "ticket.confirm";
    type Params = Confirmation;
    type Output = ();
    type Error = ReadError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Confirmation,
    ) -> Result<(), ReadError> {
        let ticket = ctx.get(ShardedId::<Ticket>::from_uuid(params.ticket)).await?;
        let ticket = ticket.apply(|ticket| {
            ticket.confirmed = true;
            TicketEvent::Confirmed {}
        });
        ctx.plan().update(ticket);
        Ok(())
    }
}

/// Confirms what was sold, on the shard of the ticket.
struct ConfirmTickets;

impl EventHandler for ConfirmTickets {
    const NAME: &'static str = "tickets.confirm";
    type Event = TicketEvent;
    type Error = ExecuteError<ReadError>;

    async fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        event: &Delivered<TicketEvent>,
    ) -> Result<(), ExecuteError<ReadError>> {
        match event.event {
            TicketEvent::Sold { ticket } => ctx.finish(&Confirm, Confirmation { ticket }).await,
            TicketEvent::Confirmed {} => Ok(()),
        }
    }
}

/// Sells a ticket, and has it confirmed later.
struct SellAndConfirm;

impl Action for SellAndConfirm {
    const NAME: &'static str = "ticket.sell_and_confirm";
    type Params = On;
    type Output = ();
    type Error = ReadError;

    async fn perform(&self, ctx: &mut ActionContext<'_>, on: &On) -> Result<(), ReadError> {
        let ticket = Sell.perform(ctx, on).await?.uuid();
        // A key of one shard is none of another.
        let key = if on.member == 1 { ticket.to_string() } else { "the last one".to_owned() };
        ctx.plan().cancel(&Confirm, &key);
        ctx.plan().enqueue(&Confirm, Confirmation { ticket }).unique(key);
        Ok(())
    }
}

/// Has a ticket confirmed later, and writes no row.
struct ConfirmLater;

impl Action for ConfirmLater {
    const NAME: &'static str = "ticket.confirm_later";
    type Params = Confirmation;
    type Output = ();
    type Error = std::convert::Infallible;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Confirmation,
    ) -> Result<(), Self::Error> {
        let call = Confirmation { ticket: params.ticket };
        ctx.plan().enqueue(&Confirm, call).unique("the only one");
        Ok(())
    }
}

/// Sells a second ticket for each one, on another shard.
struct SellAnother;

impl EventHandler for SellAnother {
    const NAME: &'static str = "tickets.sell_another";
    type Event = TicketEvent;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    async fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        event: &Delivered<TicketEvent>,
    ) -> Result<(), Self::Error> {
        if event.shard != ShardIdentifier::DEFAULT {
            return Ok(());
        }
        let there = On { group: 3, member: 7 };
        let call = ctx.executor().execute(&Sell, there).once(Self::NAME, event.id.to_string());
        let answer = call.await?;
        // Each event is handled twice: after the first run nothing says so.
        if event.attempt == 1 {
            assert!(matches!(answer, Once::Done(_)));
            return Err("after the commit, before the mark".into());
        }
        assert_eq!(answer, Once::Duplicate);
        Ok(())
    }
}

/// Prints what was sold.
struct PrintTickets;

impl EventHandler for PrintTickets {
    const NAME: &'static str = "tickets.print";
    type Event = TicketEvent;
    type Error = RemoteCallError;

    async fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        _: &Delivered<TicketEvent>,
    ) -> Result<(), RemoteCallError> {
        ctx.remote_call("print", |_| async { Ok(()) }).await
    }
}

/// Confirms what was sold in a step, and fails the first time.
struct ConfirmInStep;

impl EventHandler for ConfirmInStep {
    const NAME: &'static str = "tickets.confirm_in_step";
    type Event = TicketEvent;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    async fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        event: &Delivered<TicketEvent>,
    ) -> Result<(), Self::Error> {
        let TicketEvent::Sold { ticket } = event.event else { return Ok(()) };
        ctx.step("confirm", &Confirm, Confirmation { ticket }).await?;
        Err("after the step".into())
    }
}

fn migrations() -> Migrations {
    let tickets = |uuid: &str, date: &str| {
        format!(
            "CREATE TABLE tickets (id {uuid} PRIMARY KEY, confirmed boolean NOT NULL, \
             state varchar(16) NOT NULL, version bigint NOT NULL, created_date {date} NOT NULL, \
             updated_date {date} NOT NULL)"
        )
    };
    let sqlite = tickets("TEXT NOT NULL", "TEXT");
    let sqlite = sqlite
        .replace("boolean", "INTEGER")
        .replace("bigint", "INTEGER")
        .replace("varchar(16)", "TEXT");
    Migrations::none()
        .script_for(ekbatan::db::Dialect::Sqlite, 1, "tickets", sqlite)
        .script_for(ekbatan::db::Dialect::Postgres, 1, "tickets", tickets("uuid", "timestamp"))
        .script_for(ekbatan::db::Dialect::MariaDb, 1, "tickets", tickets("uuid", "datetime(6)"))
}

/// The shards of all tests.
fn shards() -> [ShardIdentifier; 3] {
    [(0, 0), (0, 1), (3, 7)].map(|(group, member)| {
        ShardIdentifier::new(group, member).expect("each of these can be a shard")
    })
}

/// Tickets, as a process sees them whose configuration has the first shards only.
async fn open(scratches: &[ScratchDatabase]) -> ActionExecutor {
    let others = shards().into_iter().zip(scratches).skip(1);
    let config = others
        .fold(EkbatanConfig::from(scratches[0].config()), |config, (shard, scratch)| {
            config.shard(shard, ShardMemberConfig::new(0, scratch.config()))
        });
    let databases = Databases::connect(&config).await.unwrap();
    databases.migrate(&migrations()).await.unwrap();
    let builder = ActionExecutor::builder(&databases, "com.example.tickets").model::<Ticket>();
    builder.build().await.unwrap()
}

/// Tickets on SQLite, PostgreSQL and MariaDB.
async fn three_shards() -> (ActionExecutor, [ShardIdentifier; 3], Vec<ScratchDatabase>) {
    let mut scratches = Vec::new();
    for dialect in [Dialect::Sqlite, Dialect::Postgres, Dialect::MariaDb] {
        scratches.push(ScratchDatabase::create(dialect).await);
    }
    (open(&scratches).await, shards(), scratches)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_shard_handles_its_own_events_and_commits_their_effects_there() {
    let (executor, shards, scratches) = three_shards().await;
    let node = crate::scene::node(&executor)
        .handler_with(ConfirmTickets, HandlerOptions::default())
        .start()
        .await
        .unwrap();
    for _ in 0..10 {
        for shard in shards {
            let on = On { group: shard.group().into(), member: shard.member().into() };
            executor.execute(&Sell, on).await.unwrap();
        }
    }
    // Each ticket has two events.
    until("all are handled", async || node.handlers()[0].handled == 60).await;
    let tickets = executor.databases().repository::<Ticket>();
    let confirmed = tickets.find_where(Ticket::CONFIRMED.eq(true)).await.unwrap();
    assert_eq!(confirmed.len(), 30);
    assert!(confirmed.iter().all(|ticket| ticket.version() == 2), "each was confirmed once");
    for scratch in &scratches {
        assert_eq!(scratch.count("tickets").await, 10);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_on_another_shard_is_there_once_by_the_inbox() {
    let (executor, shards, scratches) = three_shards().await;
    let options = HandlerOptions::default()
        .retry(Duration::from_millis(1), Duration::from_millis(5))
        .max_attempts(3);
    let node = crate::scene::node(&executor).handler_with(SellAnother, options);
    let node = node.start().await.unwrap();
    for _ in 0..60 {
        executor.execute(&Sell, On { group: 0, member: 0 }).await.unwrap();
    }
    until("all are handled", async || node.handlers()[0].handled == 120).await;
    assert_eq!(node.handlers()[0].failed, 60);
    assert_eq!(scratches[2].count("tickets").await, 60);
    let mut inbox = Vec::new();
    for scratch in &scratches {
        inbox.push(scratch.count(&scratch.eventlog("inbox")).await);
    }
    assert_eq!(inbox.iter().sum::<usize>(), 60);
    assert!(inbox.iter().all(|count| *count > 0), "on {shards:?}: {inbox:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueued_call_is_on_the_shard_of_its_action() {
    let (executor, shards, scratches) = three_shards().await;
    for shard in shards {
        for _ in 0..3 {
            let on = On { group: shard.group().into(), member: shard.member().into() };
            executor.execute(&SellAndConfirm, on).await.unwrap();
        }
    }
    let mut waiting = Vec::new();
    for scratch in &scratches {
        waiting.push(scratch.count(&scratch.eventlog("deliveries")).await);
    }
    // Where all calls have one key, each cancels the one before it.
    assert_eq!(waiting, [1, 3, 1]);
    let _node = crate::scene::node(&executor).action(Confirm).start().await.unwrap();
    let tickets = executor.databases().repository::<Ticket>();
    let confirmed = Ticket::CONFIRMED.eq(true);
    until("the tickets are confirmed", async || {
        tickets.count_where(confirmed.clone()).await.unwrap() == 5
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remote_call_is_on_the_shard_of_its_event() {
    let (executor, shards, scratches) = three_shards().await;
    let node = crate::scene::node(&executor).handler(PrintTickets).start().await.unwrap();
    for (shard, count) in shards.into_iter().zip(1..) {
        for _ in 0..count {
            let on = On { group: shard.group().into(), member: shard.member().into() };
            executor.execute(&Sell, on).await.unwrap();
        }
    }
    until("all are handled", async || node.handlers()[0].handled == 6).await;
    let mut calls = Vec::new();
    for scratch in &scratches {
        calls.push(scratch.count(&scratch.eventlog("remote_calls")).await);
    }
    assert_eq!((calls, node.handlers()[0].failed), (vec![1, 2, 3], 0));
}

/// Sells tickets on a shard, confirms each in a step, and parks their events.
async fn park_events_with_steps(
    executor: &ActionExecutor,
    (group, member): (u32, u32),
    tickets: usize,
) {
    let options = HandlerOptions::default().max_attempts(1);
    let node = crate::scene::node(executor).handler_with(ConfirmInStep, options);
    let node = node.start().await.unwrap();
    for _ in 0..tickets {
        executor.execute(&Sell, On { group, member }).await.unwrap();
    }
    until("all are parked", async || node.handlers()[0].failed == tickets as u64).await;
    node.drain(Duration::from_secs(30)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_shard_repeats_no_step() {
    const TICKETS: usize = 24;
    let mut scratches = Vec::new();
    for _ in 0..3 {
        scratches.push(ScratchDatabase::create(Dialect::Sqlite).await);
    }
    park_events_with_steps(&open(&scratches[..2]).await, (0, 0), TICKETS).await;
    let executor = open(&scratches).await;
    let options = HandlerOptions::default().max_attempts(1);
    let node = crate::scene::node(&executor).handler_with(ConfirmInStep, options);
    let node = node.start().await.unwrap();
    let shard = executor.databases().default_shard();
    let operations = DeliveryOperations::new(executor.databases(), &shard);
    for parked in operations.parked(TICKETS).await.unwrap() {
        operations.retry(parked.id, "alice", "there is one more shard").await.unwrap();
    }
    until("all ran again", async || node.handlers()[0].failed == TICKETS as u64).await;
    let tickets = executor.databases().repository::<Ticket>().find_all().await.unwrap();
    let repeated = tickets.iter().filter(|ticket| ticket.version() != 2).count();
    assert_eq!((tickets.len(), repeated), (TICKETS, 0), "each was confirmed once");
    let keys = scratches[0].eventlog("idempotency_keys");
    assert_eq!(scratches[0].count(&keys).await, TICKETS);
}

/// Keys of steps are on the shard of their delivery, wherever keys have their homes.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_steps_stay_as_long_as_their_delivery() {
    const TICKETS: usize = 12;
    let (executor, _, scratches) = three_shards().await;
    park_events_with_steps(&executor, (0, 1), TICKETS).await;
    let mut counts = Vec::new();
    for scratch in &scratches {
        counts.push(scratch.count(&scratch.eventlog("idempotency_keys")).await);
    }
    assert_eq!(counts, [0, TICKETS, 0]);
    let of_event = &scratches[1];
    let keys = of_event.eventlog("idempotency_keys");
    of_event.execute(&format!("UPDATE {keys} SET created_date = '2020-01-01 00:00:00'")).await;
    let retention = Retention::new().keys(Retention::LEAST);
    assert_eq!(retention.run(executor.databases()).await.unwrap().keys, 0);
    let deliveries = of_event.eventlog("deliveries");
    of_event.execute(&format!("DELETE FROM {deliveries} WHERE state = 'PARKED'")).await;
    assert_eq!(retention.run(executor.databases()).await.unwrap().keys, TICKETS as u64);
}

/// A process that ends right after a step has committed leaves a claim, and a decision where the step wrote.
#[tokio::test(flavor = "multi_thread")]
async fn decisions_stay_as_long_as_the_step_of_an_event_may_be_a_claim() {
    let (executor, _, scratches) = three_shards().await;
    park_events_with_steps(&executor, (0, 1), 1).await;
    let (of_event, elsewhere) = (&scratches[1], &scratches[2]);
    let (claim, date) = (Uuid::now_v7(), "2020-01-01 00:00:00");
    let keys = of_event.eventlog("idempotency_keys");
    let as_a_claim = format!("UPDATE {keys} SET created_date = '{date}', claim_id = '{claim}'");
    of_event.execute(&as_a_claim).await;
    let decisions = elsewhere.eventlog("idempotency_decisions");
    let decision = format!("VALUES ('{claim}', true, '{date}')");
    let columns = "(claim_id, committed, decided_date)";
    elsewhere.execute(&format!("INSERT INTO {decisions} {columns} {decision}")).await;
    let retention = Retention::new().keys(Retention::LEAST).inbox(Retention::LEAST);
    retention.run(executor.databases()).await.unwrap();
    assert_eq!(elsewhere.count(&decisions).await, 1);
    let deliveries = of_event.eventlog("deliveries");
    of_event.execute(&format!("DELETE FROM {deliveries} WHERE state = 'PARKED'")).await;
    // The shards are served side by side, so the claim may be there still when the first run looks for it.
    for _ in 0..2 {
        retention.run(executor.databases()).await.unwrap();
    }
    assert_eq!(elsewhere.count(&decisions).await, 0);
}

/// The keys of the actions have their homes on all shards.
#[tokio::test(flavor = "multi_thread")]
async fn a_unique_call_of_actions_that_write_no_rows_is_on_the_default_shard() {
    let (executor, _, scratches) = three_shards().await;
    for n in 0..20 {
        let call = || Confirmation { ticket: Uuid::now_v7() };
        let under_key = executor.execute(&ConfirmLater, call());
        under_key.idempotency_key(format!("key {n}")).await.unwrap();
        executor.execute(&ConfirmLater, call()).once("a consumer", format!("{n}")).await.unwrap();
    }
    let mut waiting = Vec::new();
    for scratch in &scratches {
        waiting.push(scratch.count(&scratch.eventlog("deliveries")).await);
    }
    assert_eq!(waiting, [1, 0, 0]);
}
