//! Rules of the database that look at every change: a group obeys them as its calls would one
//! after another.

use std::future::IntoFuture;
use std::time::Duration;

use ekbatan::action::ErrorKind;
use ekbatan::db::MigrationError;
use ekbatan::domain::New;
use ekbatan::lock::LockKey;
use ekbatan::prelude::*;
use ekbatan::repository::Repository;
use futures_util::FutureExt;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use support::{Dialect, Domain, Recorder, TestDatabase, connected, until};

use crate::acts::{Act, Call, Gate, Nothing, Refused, act, enqueued, hold, in_queue, poll_once};

/// Accounts with a check and a unique key, their entries, counters without any rule, and
/// gauges with a trigger that records every image.
pub static ACCOUNTS: Domain = Domain {
    migrations,
    executor: |databases| {
        ActionExecutor::builder(databases, "com.example.accounts")
            .model::<Account>()
            .model::<Entry>()
            .model::<Counter>()
            .model::<Gauge>()
    },
};

macro_rules! on_every_database {
    ($($tests:tt)*) => {
        support::on_every_database! {
            #[tokio::test]
            |dialect| &support::TestDatabase::start(&crate::rules::ACCOUNTS, dialect).await;
            $($tests)*
        }
    };
}

on_every_database! {
    a_check_refuses_the_call_that_violates_it,
    a_refusal_concerns_nobody_else,
    calls_behind_a_refused_one_run_again,
    a_unique_key_compares_with_the_values_in_between,
    a_child_is_refused_before_its_parent_is_there,
    a_trigger_sees_every_change,
    changes_without_a_rule_are_merged,
    columns_without_a_rule_are_merged,
    a_new_rule_holds_after_the_migration,
    texts_with_quotes_survive_a_group_in_turn,
    adaptive_calls_obey_rules,
    a_value_that_does_not_fit_is_refused_though_the_last_one_fits,
}

on_every_database! {
    on_sqlite_only:
    a_group_stays_within_the_bound_of_a_commit,
    a_new_rule_holds_if_a_later_migration_fails,
    a_new_rule_holds_if_another_process_added_it,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Entity)]
#[entity(table = "accounts", name = "Account")]
struct Account {
    id: Id<Account>,
    balance: i64,
    code: Option<String>,
    note: String,
    state: Standing,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Entity)]
#[entity(table = "entries", name = "Entry")]
struct Entry {
    id: Id<Entry>,
    account: Id<Account>,
    state: Standing,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Entity)]
#[entity(table = "counters", name = "Counter")]
struct Counter {
    id: Id<Counter>,
    hits: i64,
    label: String,
    state: Standing,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Entity)]
#[entity(table = "gauges", name = "Gauge")]
struct Gauge {
    id: Id<Gauge>,
    level: i64,
    state: Standing,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, State)]
enum Standing {
    Active,
    Deleted,
}

const TABLES: &str = "
CREATE TABLE accounts (
    id {id} NOT NULL PRIMARY KEY,
    balance bigint NOT NULL,
    code varchar(64),
    note varchar(64) NOT NULL,
    state varchar(24) NOT NULL,
    version bigint NOT NULL,
    CONSTRAINT accounts_balance_check CHECK (balance >= 0),
    CONSTRAINT accounts_code_key UNIQUE (code)
);
CREATE TABLE entries (
    id {id} NOT NULL PRIMARY KEY,
    account {id} NOT NULL,
    state varchar(24) NOT NULL,
    version bigint NOT NULL,
    CONSTRAINT entries_account_fkey FOREIGN KEY (account) REFERENCES accounts (id)
);
CREATE TABLE counters (
    id {id} NOT NULL PRIMARY KEY,
    hits bigint NOT NULL,
    label varchar(8) NOT NULL,
    state varchar(24) NOT NULL,
    version bigint NOT NULL
);
CREATE TABLE gauges (
    id {id} NOT NULL PRIMARY KEY,
    level bigint NOT NULL,
    state varchar(24) NOT NULL,
    version bigint NOT NULL
);
CREATE TABLE levels (level bigint NOT NULL);
";

fn migrations() -> Migrations {
    let tables = |id: &str| TABLES.replace("{id}", id);
    let in_body = "CREATE TRIGGER record_level AFTER UPDATE ON gauges FOR EACH ROW
        INSERT INTO levels (level) VALUES (NEW.level);";
    let begin_end = "CREATE TRIGGER record_level AFTER UPDATE ON gauges FOR EACH ROW
        BEGIN INSERT INTO levels (level) VALUES (NEW.level); END;";
    let function = "CREATE FUNCTION record_level() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO levels (level) VALUES (NEW.level); RETURN NULL; END $$;
        CREATE TRIGGER record_level AFTER UPDATE ON gauges FOR EACH ROW EXECUTE FUNCTION record_level();";
    Migrations::none()
        .script_for(ekbatan::db::Dialect::Sqlite, 1, "create_accounts", tables("text"))
        .script_for(ekbatan::db::Dialect::Postgres, 1, "create_accounts", tables("uuid"))
        .script_for(ekbatan::db::Dialect::MySql, 1, "create_accounts", tables("char(36)"))
        .script_for(ekbatan::db::Dialect::MariaDb, 1, "create_accounts", tables("uuid"))
        .script_for(ekbatan::db::Dialect::Sqlite, 2, "record_levels", begin_end)
        .script_for(ekbatan::db::Dialect::Postgres, 2, "record_levels", function)
        .script_for(ekbatan::db::Dialect::MySql, 2, "record_levels", in_body)
        .script_for(ekbatan::db::Dialect::MariaDb, 2, "record_levels", in_body)
}

fn accounts(db: &TestDatabase) -> Repository<Account> {
    db.databases.repository()
}

fn account(id: Id<Account>, balance: i64, code: Option<&str>) -> Account {
    let code = code.map(str::to_owned);
    Account { id, balance, code, note: String::new(), state: Standing::Active }
}

async fn an_account(db: &TestDatabase, balance: i64, code: Option<&str>) -> Id<Account> {
    let account = account(Id::new(), balance, code);
    accounts(db).add(New::new(account, ())).await.unwrap().id
}

async fn a_counter(db: &TestDatabase) -> Id<Counter> {
    let counter =
        Counter { id: Id::new(), hits: 0, label: "none".to_owned(), state: Standing::Active };
    db.databases.repository::<Counter>().add(New::new(counter, ())).await.unwrap().id
}

/// Changes an account without a check of its own.
fn change(
    id: Id<Account>,
    change: impl Fn(&mut Account) + Send + Sync + 'static,
) -> Act<Stored<Account>> {
    let change = std::sync::Arc::new(change);
    act(move |ctx| {
        let change = change.clone();
        async move {
            let account = ctx.get(id).await?;
            Ok(ctx.plan().update(account.apply(|account| change(account))))
        }
        .boxed()
    })
}

fn book(id: Id<Account>, amount: i64) -> Act<Stored<Account>> {
    change(id, move |account| account.balance += amount)
}

fn set_code(id: Id<Account>, code: &'static str) -> Act<Stored<Account>> {
    change(id, move |account| account.code = Some(code.to_owned()))
}

fn count(id: Id<Counter>, label: &'static str) -> Act<Stored<Counter>> {
    act(move |ctx| {
        async move {
            let counter = ctx.get(id).await.unwrap();
            Ok(ctx.plan().update(counter.apply(|counter| {
                counter.hits += 1;
                counter.label = label.to_owned();
            })))
        }
        .boxed()
    })
}

/// Runs the actions as one group, and returns what each of them answers.
async fn in_a_group<O: Send>(
    executor: &ActionExecutor,
    acts: &[Act<O>],
) -> Vec<Result<O, ExecuteError<Refused>>> {
    let gate = Gate::closed();
    let holds = hold(&gate);
    let holding = enqueued(in_queue(executor, &holds)).await;
    let mut calls = Vec::new();
    for act in acts {
        calls.push(enqueued(in_queue(executor, act)).await);
    }
    gate.open();
    let (held, answers) = tokio::join!(holding, join_all(calls));
    held.unwrap();
    answers
}

fn kinds<O>(answers: &[Result<O, ExecuteError<Refused>>]) -> Vec<Option<ErrorKind>> {
    answers.iter().map(|answer| answer.as_ref().err().map(ExecuteError::kind)).collect()
}

/// How many rows each group wrote that the current thread committed since the start.
fn rows_written(recorder: &Recorder) -> Vec<String> {
    let commits = recorder.of("ekbatan.contention.commit");
    commits.iter().map(|of| of.field("ekbatan.batch.size").unwrap().to_owned()).collect()
}

async fn a_check_refuses_the_call_that_violates_it(db: &TestDatabase) {
    let executor = db.executor().await;
    let id = an_account(db, 10, None).await;
    let answers = in_a_group(&executor, &[book(id, -15), book(id, 10)]).await;
    assert_eq!(kinds(&answers), [Some(ErrorKind::Refused), None]);
    let refused = answers[0].as_ref().unwrap_err();
    assert_eq!(refused.constraint(), Some("accounts_balance_check"), "{refused}");
    assert_eq!(answers[1].as_ref().unwrap().balance, 20);
    let stored = accounts(db).get(id).await.unwrap();
    assert_eq!((stored.balance, stored.version()), (20, 2));
}

async fn a_refusal_concerns_nobody_else(db: &TestDatabase) {
    let executor = db.executor().await;
    let id = an_account(db, 10, None).await;
    // After each withdrawal of 15 the balance would be negative.
    let amounts = [1, -15, 1, 1, -15, -15, 1, 1];
    let answers = in_a_group(&executor, &amounts.map(|amount| book(id, amount))).await;
    let refused = Some(ErrorKind::Refused);
    assert_eq!(kinds(&answers), [None, refused, None, None, refused, refused, None, None]);
    let balances: Vec<i64> = answers.iter().flatten().map(|account| account.balance).collect();
    assert_eq!(balances, [11, 12, 13, 14, 15]);
    let stored = accounts(db).get(id).await.unwrap();
    assert_eq!((stored.balance, stored.version()), (15, 6));
    // Each call that committed left one row.
    assert_eq!(db.count_events().await, 5);
}

/// What they read of the refused call was never committed.
async fn calls_behind_a_refused_one_run_again(db: &TestDatabase) {
    let executor = db.executor().await;
    let id = an_account(db, 10, None).await;
    let refuse = || {
        act(move |ctx| {
            async move { Err(Refused(ctx.get(id).await.unwrap().balance.to_string())) }.boxed()
        })
    };
    let acts = [book(id, 5), refuse(), book(id, -100), refuse(), book(id, 1)];
    let answers = in_a_group(&executor, &acts).await;
    let texts: Vec<String> = answers
        .iter()
        .map(|answer| match answer {
            Ok(account) => account.balance.to_string(),
            Err(ExecuteError::Domain(Refused(balance))) => format!("refused at {balance}"),
            Err(other) => format!("{:?}", other.kind()),
        })
        .collect();
    assert_eq!(texts, ["15", "refused at 15", "Refused", "refused at 15", "16"]);
    assert_eq!(accounts(db).get(id).await.unwrap().version(), 3);
}

async fn a_unique_key_compares_with_the_values_in_between(db: &TestDatabase) {
    let executor = db.executor().await;
    let (first, second) = (an_account(db, 0, Some("a")).await, an_account(db, 0, Some("b")).await);
    // The last image of one row alone would pass.
    let answers = in_a_group(&executor, &[set_code(first, "b"), set_code(first, "c")]).await;
    assert_eq!(kinds(&answers), [Some(ErrorKind::Unique), None]);
    // So would the two rows together.
    let answers = in_a_group(&executor, &[set_code(second, "c"), set_code(first, "d")]).await;
    assert_eq!(kinds(&answers), [Some(ErrorKind::Unique), None]);
    // A value that an earlier call of the group gives up is free.
    let answers = in_a_group(&executor, &[set_code(second, "e"), set_code(first, "b")]).await;
    assert_eq!(kinds(&answers), [None, None]);
    let code = async |id| accounts(db).get(id).await.unwrap().code.clone().unwrap();
    assert_eq!((code(first).await, code(second).await), ("b".to_owned(), "e".to_owned()));
}

async fn a_child_is_refused_before_its_parent_is_there(db: &TestDatabase) {
    let executor = db.executor().await;
    let id = Id::new();
    let parent = move || {
        act(move |ctx| {
            async move {
                ctx.plan().add(New::new(account(id, 0, None), ()));
                Ok(())
            }
            .boxed()
        })
    };
    let child = move || {
        act(move |ctx| {
            async move {
                let entry = Entry { id: ctx.new_id(), account: id, state: Standing::Active };
                ctx.plan().add(New::new(entry, ()));
                Ok(())
            }
            .boxed()
        })
    };
    let answers = in_a_group(&executor, &[child(), parent(), child()]).await;
    assert_eq!(kinds(&answers), [Some(ErrorKind::ForeignKey), None, None]);
    assert_eq!(db.count("entries").await, 1);
}

async fn a_trigger_sees_every_change(db: &TestDatabase) {
    let executor = db.executor().await;
    let gauge = Gauge { id: Id::new(), level: 0, state: Standing::Active };
    let id = db.databases.repository::<Gauge>().add(New::new(gauge, ())).await.unwrap().id;
    let raise = || {
        act(move |ctx| {
            async move {
                let gauge = ctx.get(id).await.unwrap();
                Ok(ctx.plan().update(gauge.apply(|gauge| gauge.level += 1)))
            }
            .boxed()
        })
    };
    let answers = in_a_group(&executor, &[raise(), raise(), raise(), raise()]).await;
    assert_eq!(kinds(&answers), [None; 4]);
    let levels = db.select(&["level"], "FROM levels ORDER BY level").await;
    let levels: Vec<&str> = levels.iter().map(|row| row[0].as_deref().unwrap()).collect();
    assert_eq!(levels, ["1", "2", "3", "4"]);
}

async fn changes_without_a_rule_are_merged(db: &TestDatabase) {
    let (recorder, _recording) = Recorder::start();
    let executor = db.executor().await;
    let id = a_counter(db).await;
    let answers = in_a_group(&executor, &[(); 8].map(|()| count(id, "some"))).await;
    assert_eq!(kinds(&answers), [None; 8]);
    assert_eq!(rows_written(&recorder), ["1"]);
    let stored = db.databases.repository::<Counter>().get(id).await.unwrap();
    assert_eq!((stored.hits, stored.version()), (8, 9));
}

async fn columns_without_a_rule_are_merged(db: &TestDatabase) {
    let (recorder, _recording) = Recorder::start();
    let executor = db.executor().await;
    let id = an_account(db, 10, Some("a")).await;
    let note = |text: &'static str| change(id, move |account| account.note = text.to_owned());
    let answers = in_a_group(&executor, &[note("one"), note("two"), note("three")]).await;
    assert_eq!(kinds(&answers), [None; 3]);
    let answers = in_a_group(&executor, &[book(id, 1), book(id, 2), book(id, 3)]).await;
    assert_eq!(kinds(&answers), [None; 3]);
    assert_eq!(rows_written(&recorder), ["1", "3"]);
    let stored = accounts(db).get(id).await.unwrap();
    assert_eq!((stored.note.as_str(), stored.balance, stored.version()), ("three", 16, 7));
}

async fn a_new_rule_holds_after_the_migration(db: &TestDatabase) {
    let (recorder, _recording) = Recorder::start();
    let executor = db.executor().await;
    let (id, other) = (a_counter(db).await, a_counter(db).await);
    let answers = in_a_group(&executor, &[count(id, "x"), count(id, "y")]).await;
    assert_eq!(kinds(&answers), [None; 2]);
    db.databases.migrate(&unique_labels()).await.unwrap();
    labels_are_unique(&executor, id, other).await;
    assert_eq!(rows_written(&recorder)[0], "1");
}

fn unique_labels() -> Migrations {
    let unique = "CREATE UNIQUE INDEX counters_label_key ON counters (label)";
    migrations().script(3, "unique_labels", unique)
}

/// Two counters with labels of their own.
async fn two_counters(db: &TestDatabase, executor: &ActionExecutor) -> (Id<Counter>, Id<Counter>) {
    let (id, other) = (a_counter(db).await, a_counter(db).await);
    in_queue(executor, &count(id, "y")).await.unwrap();
    (id, other)
}

/// Asserts that a group, of whose images the last one alone would pass, obeys the unique key.
async fn labels_are_unique(executor: &ActionExecutor, id: Id<Counter>, other: Id<Counter>) {
    in_queue(executor, &count(other, "x")).await.unwrap();
    let answers = in_a_group(executor, &[count(id, "x"), count(id, "z")]).await;
    assert_eq!(kinds(&answers), [Some(ErrorKind::Unique), None]);
}

async fn a_new_rule_holds_if_a_later_migration_fails(db: &TestDatabase) {
    let executor = db.executor().await;
    let (id, other) = two_counters(db, &executor).await;
    let broken = unique_labels().script(4, "broken", "INSERT INTO nowhere VALUES (1)");
    match db.databases.migrate(&broken).await.unwrap_err() {
        MigrationError::Failed { version: 4, .. } => {}
        other => panic!("{other:?}"),
    }
    labels_are_unique(&executor, id, other).await;
}

async fn a_new_rule_holds_if_another_process_added_it(db: &TestDatabase) {
    let executor = db.executor().await;
    let (id, other) = two_counters(db, &executor).await;
    db.open_again().await.migrate(&unique_labels()).await.unwrap();
    // Nothing is left to do.
    db.databases.migrate(&unique_labels()).await.unwrap();
    labels_are_unique(&executor, id, other).await;
}

async fn texts_with_quotes_survive_a_group_in_turn(db: &TestDatabase) {
    let (recorder, _recording) = Recorder::start();
    let executor = db.executor().await;
    let id = an_account(db, 0, None).await;
    let texts = ["it's", "a \\' b", "\\\\'; DROP TABLE accounts; --", "$1 \"ü\" \n \u{1f600}"];
    for text in texts {
        let rename = change(id, move |account| {
            account.balance += 1;
            account.note = text.to_owned();
        });
        let answers = in_a_group(&executor, &[book(id, 1), rename]).await;
        assert_eq!(kinds(&answers), [None, None]);
        assert_eq!(accounts(db).get(id).await.unwrap().note, text);
    }
    assert_eq!(rows_written(&recorder), ["2"; 4]);
}

fn adaptive<'a, O: Send>(executor: &'a ActionExecutor, act: &'a Act<O>) -> Call<'a, O> {
    let call = executor.execute(act, Nothing {}).contention(Contention::adaptive());
    call.contention_keys([LockKey::named("the account")]).into_future()
}

/// Conflicts make the key hot, so that its calls run in groups.
async fn adaptive_calls_obey_rules(db: &TestDatabase) {
    let executor = db.executor().await;
    let id = an_account(db, 10, None).await;
    // Conflicts count only when they are close together, which they may not be on a slow machine.
    while executor.hot_keys().is_empty() {
        let acts = [(); 4].map(|()| book(id, 0));
        join_all(acts.iter().map(|act| adaptive(&executor, act))).await;
    }
    let gate = Gate::closed();
    let (holds, withdraw, deposit) = (hold(&gate), book(id, -15), book(id, 10));
    let mut holding = adaptive(&executor, &holds);
    let mut withdraw = adaptive(&executor, &withdraw);
    let mut deposit = adaptive(&executor, &deposit);
    assert!(poll_once(&mut holding).await.is_pending());
    assert!(poll_once(&mut withdraw).await.is_pending());
    assert!(poll_once(&mut deposit).await.is_pending());
    gate.open();
    let (_, withdraw, deposit) = tokio::join!(holding, withdraw, deposit);
    assert_eq!(withdraw.unwrap_err().kind(), ErrorKind::Refused);
    deposit.unwrap();
    assert_eq!(accounts(db).get(id).await.unwrap().balance, 20);
}

async fn a_value_that_does_not_fit_is_refused_though_the_last_one_fits(db: &TestDatabase) {
    let executor = db.executor().await;
    let id = a_counter(db).await;
    let answers = in_a_group(&executor, &[count(id, "much too long"), count(id, "fits")]).await;
    // SQLite keeps a text of any length.
    let (refused, hits) = match db.dialect {
        Dialect::Sqlite => (None, 2),
        _ => (Some(ErrorKind::Refused), 1),
    };
    assert_eq!(kinds(&answers), [refused, None]);
    let stored = db.databases.repository::<Counter>().get(id).await.unwrap();
    assert_eq!((stored.hits, stored.label.as_str()), (hits, "fits"));
}

mod of_the_server {
    use super::*;

    // A statement timeout of MySQL ends only statements that select, and PostgreSQL has a lock timeout that ends
    // before it.
    on_every_database! { only mariadb: a_group_waits_for_a_locked_row_once }

    /// MariaDB has no lock timeout below a second, so the statement timeout ends the wait.
    async fn a_group_waits_for_a_locked_row_once(db: &TestDatabase) {
        let id = an_account(db, 0, None).await;
        let config = db.config().statement_timeout(Duration::from_millis(500));
        let databases = connected(&config.into()).await;
        // On a slow machine a read may take longer than the timeout.
        let mut executor = None;
        until("the executor is built", async || {
            executor = (ACCOUNTS.executor)(&databases).build().await.ok();
            executor.is_some()
        })
        .await;
        let executor = executor.unwrap();
        let mut holder = db.connect().await;
        holder.execute("BEGIN").await;
        holder.execute(&format!("SELECT 1 FROM accounts WHERE id = '{id}' FOR UPDATE")).await;
        until("all calls of the group are busy at once", async || {
            let acts = [book(id, 1), book(id, 1)];
            let answers = in_a_group(&executor, &acts).await;
            kinds(&answers) == [Some(ErrorKind::Busy); 2] && acts.iter().all(|act| act.runs() == 1)
        })
        .await;
    }
}

/// A commit that is too large would be refused, and each call would run again.
async fn a_group_stays_within_the_bound_of_a_commit(db: &TestDatabase) {
    let config = db.config().max_row_bytes(30_000).max_commit_bytes(50_000);
    let databases = connected(&config.into()).await;
    let executor = ACCOUNTS.executor_on(&databases).await;
    let acts: Vec<Act<()>> = (0..10)
        .map(|_| {
            act(move |ctx| {
                let note = "n".repeat(20_000);
                let account = Account { note, ..account(ctx.new_id(), 0, None) };
                ctx.plan().add(New::new(account, ()));
                async { Ok(()) }.boxed()
            })
        })
        .collect();
    let answers = in_a_group(&executor, &acts).await;
    assert_eq!(kinds(&answers), [None; 10]);
    assert_eq!(acts.iter().map(Act::runs).collect::<Vec<_>>(), [1; 10]);
}

mod deferred {
    use super::*;

    on_every_database! {
        only postgres:
        a_deferred_key_is_checked_for_each_call,
        a_group_that_fails_at_its_commit_runs_again,
    }

    /// What fails once, when a transaction with a changed account commits.
    const FAILS_ONCE: &str = "
        CREATE SEQUENCE failures;
        CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('failures') = 1 THEN
                RAISE EXCEPTION 'not serializable' USING ERRCODE = 'serialization_failure';
            END IF;
            RETURN NULL;
        END $$;
        CREATE FUNCTION defer() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN SET CONSTRAINTS ALL DEFERRED; RETURN NULL; END $$;
        CREATE TRIGGER defer BEFORE UPDATE ON accounts FOR EACH STATEMENT EXECUTE FUNCTION defer();
        CREATE CONSTRAINT TRIGGER fail_once AFTER UPDATE ON accounts DEFERRABLE
            FOR EACH ROW EXECUTE FUNCTION fail_once();";

    /// The statements of the group have run then, also those that drop what it prepared.
    async fn a_group_that_fails_at_its_commit_runs_again(db: &TestDatabase) {
        let (recorder, _recording) = Recorder::start();
        db.execute(FAILS_ONCE).await;
        let executor = db.executor().await;
        let id = an_account(db, 0, None).await;
        for _ in 0..4 {
            let answers = in_a_group(&executor, &[book(id, 1), book(id, 1)]).await;
            assert_eq!(kinds(&answers), [None; 2], "{answers:?}");
        }
        assert_eq!(accounts(db).get(id).await.unwrap().balance, 8);
        let reruns = recorder.of("rerun");
        let errors: Vec<&str> = reruns.iter().filter_map(|rerun| rerun.field("error")).collect();
        assert!(matches!(errors[..], [error] if error.contains("not serializable")), "{errors:?}");
    }

    async fn a_deferred_key_is_checked_for_each_call(db: &TestDatabase) {
        let key = "ALTER TABLE counters ADD CONSTRAINT counters_label_key UNIQUE (label) DEFERRABLE INITIALLY DEFERRED";
        db.databases.migrate(&migrations().script(3, "unique_labels", key)).await.unwrap();
        let executor = db.executor().await;
        let id = a_counter(db).await;
        in_queue(&executor, &count(id, "taken")).await.unwrap();
        let other = a_counter(db).await;
        let answers = in_a_group(&executor, &[count(other, "taken"), count(id, "free")]).await;
        assert_eq!(kinds(&answers), [Some(ErrorKind::Unique), None]);
    }
}
