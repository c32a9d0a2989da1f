//! Triggers that keep a statement from writing a row, without an error.

use ekbatan::action::ErrorKind;
use ekbatan::domain::{Changed, New};
use ekbatan::prelude::*;
use futures_util::future::join_all;
use support::things::{THINGS, Thing, ThingEvent, quiet, thing};
use support::{Dialect, TestDatabase};

use crate::actions::{Nothing, Refused, run, stage};

// A trigger of MySQL or MariaDB cannot do that.
on_every_database! {
    only sqlite and postgres:
    a_change_that_a_trigger_suppresses_is_refused,
    a_new_row_that_a_trigger_suppresses_is_refused,
    a_suppressed_change_stops_no_other_action,
    a_suppressed_change_within_a_transaction_is_refused,
    a_trigger_that_suppresses_nothing_changes_nothing,
}

/// Creates a trigger that suppresses the rows whose `small` is 13.
async fn create_trigger(db: &TestDatabase) -> Databases {
    let triggers = match db.dialect {
        Dialect::Postgres => {
            "CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN IF NEW.small = 13 THEN RETURN NULL; END IF; RETURN NEW; END $$; \
             CREATE TRIGGER suppress BEFORE INSERT OR UPDATE ON things \
             FOR EACH ROW EXECUTE FUNCTION suppress();"
        }
        _ => {
            "CREATE TRIGGER suppress_new BEFORE INSERT ON things WHEN NEW.small = 13 \
             BEGIN SELECT RAISE(IGNORE); END; \
             CREATE TRIGGER suppress_change BEFORE UPDATE ON things WHEN NEW.small = 13 \
             BEGIN SELECT RAISE(IGNORE); END;"
        }
    };
    db.execute(triggers).await;
    // A process asks for the triggers of a table once.
    db.open_again().await
}

async fn some_things(db: &TestDatabase, count: usize) -> Vec<Stored<Thing>> {
    let things = (0..count).map(|n| quiet(thing(&format!("{n} of {count}"))));
    db.things().add_all(things).await.unwrap()
}

fn touched(thing: &Stored<Thing>, small: i32) -> Changed<Thing> {
    thing.clone().apply(|thing| {
        thing.small = small;
        ThingEvent::Touched
    })
}

fn assert_suppressed<O: std::fmt::Debug>(answer: Result<O, ExecuteError<Refused>>) {
    let error = answer.unwrap_err();
    assert!(matches!(error, ExecuteError::Refused(_)), "{error:?}");
    let expected = "a trigger of the table `things` suppressed the change of a row";
    assert!(error.to_string().contains(expected), "{error}");
}

/// The version of each thing, and the number of events.
async fn left(db: &TestDatabase, things: &[Stored<Thing>]) -> (Vec<i64>, usize) {
    let mut versions = Vec::new();
    for thing in things {
        versions.push(db.things().get(thing.id).await.unwrap().version());
    }
    (versions, db.count_events().await)
}

async fn a_change_that_a_trigger_suppresses_is_refused(db: &TestDatabase) {
    let executor = THINGS.executor_on(&create_trigger(db).await).await;
    for count in [1, 2] {
        let things = some_things(db, count).await;
        let changes = |ctx: &mut ActionContext<'_>| {
            ctx.plan().update_all(things.iter().map(|thing| touched(thing, 13)));
            Ok(())
        };
        assert_suppressed(run(&executor, changes).await);
        // Beside a row that is not suppressed.
        let changes = |ctx: &mut ActionContext<'_>| {
            ctx.plan().update_all(things.iter().map(|thing| touched(thing, 13)));
            ctx.plan().add(quiet(thing("another")));
            Ok(())
        };
        assert_suppressed(run(&executor, changes).await);
        assert_eq!(left(db, &things).await, (vec![1; count], 0));
    }
    assert_eq!(db.count("things").await, 3);
}

async fn a_new_row_that_a_trigger_suppresses_is_refused(db: &TestDatabase) {
    let executor = THINGS.executor_on(&create_trigger(db).await).await;
    for labels in [&["a"][..], &["a", "b"]] {
        let new = |label: &&str| {
            let small = if *label == "a" { 13 } else { 1 };
            let (thing, event) = (Thing { small, ..thing(label) }, ThingEvent::Touched);
            New::new(thing, event)
        };
        let added = run(&executor, |ctx| Ok(ctx.plan().add_all(labels.iter().map(new))));
        assert_suppressed(added.await);
    }
    assert_eq!((db.count("things").await, db.count_events().await), (0, 0));
}

async fn a_suppressed_change_stops_no_other_action(db: &TestDatabase) {
    let executor = THINGS.executor_on(&create_trigger(db).await).await;
    let things = some_things(db, 6).await;
    let actions: Vec<_> = (0..)
        .zip(&things)
        .map(|(n, thing)| {
            stage(move |ctx| {
                ctx.plan().update(touched(thing, if n % 3 == 1 { 13 } else { n }));
                Ok(())
            })
        })
        .collect();
    let calls = actions.iter().map(|action| executor.execute(action, Nothing {}).into_future());
    let kinds = join_all(calls).await.into_iter().map(|answer| answer.err().map(|it| it.kind()));
    let refused = Some(ErrorKind::Refused);
    assert_eq!(kinds.collect::<Vec<_>>(), [None, refused, None, None, refused, None]);
    assert_eq!(left(db, &things).await, (vec![2, 1, 2, 2, 1, 2], 4));
}

async fn a_suppressed_change_within_a_transaction_is_refused(db: &TestDatabase) {
    let databases = create_trigger(db).await;
    let things = some_things(db, 2).await;
    let repository = databases.repository::<Thing>();
    let transactions = databases.transactions();
    let written = transactions.in_transaction(async |tx| {
        let changed = things.iter().map(|thing| thing.clone().apply(|thing| thing.small = 13));
        repository.within(&tx).update_all(changed).await.map(drop)
    });
    let error = written.await.unwrap_err().to_string();
    assert!(error.contains("a trigger of the table `things`"), "{error}");
    assert_eq!(left(db, &things).await.0, [1, 1]);
}

async fn a_trigger_that_suppresses_nothing_changes_nothing(db: &TestDatabase) {
    let executor = THINGS.executor_on(&create_trigger(db).await).await;
    let things = some_things(db, 2).await;
    let changes = |ctx: &mut ActionContext<'_>| {
        ctx.plan().update(touched(&things[0], 1).apply(|thing| thing.label = "given".to_owned()));
        ctx.plan().update(touched(&things[1], 1));
        // It takes the unique label that the first one gives up.
        ctx.plan().add(quiet(thing(&things[0].label)));
        Ok(())
    };
    run(&executor, changes).await.unwrap();
    assert_eq!(left(db, &things).await, (vec![2, 2], 2));
    // What is stale is still said to be stale.
    let changes = |ctx: &mut ActionContext<'_>| {
        ctx.plan().update(touched(&things[0], 2));
        Ok(())
    };
    let error = run(&executor, changes).await.unwrap_err();
    assert!(matches!(error, ExecuteError::Stale { .. }), "{error:?}");
    assert_eq!(left(db, &things).await, (vec![2, 2], 2));
}

mod partitions {
    use support::things::ThingState;

    use super::*;

    on_every_database! { only postgres: a_change_that_a_trigger_of_a_partition_suppresses_is_refused }

    /// A jar. Its table is divided by the id.
    #[derive(Debug, Clone, Entity)]
    #[entity(table = "jars", name = "Jar")]
    struct Jar {
        id: Id<Jar>,
        size: i64,
        state: ThingState,
    }

    const JARS: &str = "
    CREATE TABLE jars (id uuid PRIMARY KEY, size bigint NOT NULL, state text NOT NULL, version bigint NOT NULL)
        PARTITION BY HASH (id);
    CREATE TABLE all_jars PARTITION OF jars FOR VALUES WITH (MODULUS 1, REMAINDER 0);
    CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
    CREATE TRIGGER suppress BEFORE UPDATE ON all_jars FOR EACH ROW EXECUTE FUNCTION suppress();";

    async fn a_change_that_a_trigger_of_a_partition_suppresses_is_refused(db: &TestDatabase) {
        db.execute(JARS).await;
        let jars = db.databases.repository::<Jar>();
        let jar = || Jar { id: Id::new(), size: 1, state: ThingState::Active };
        let jar = [jar(), jar()].map(|jar| New::new(jar, ()));
        let stored = jars.add_all(jar).await.unwrap();
        let changed = stored.into_iter().map(|jar| jar.apply(|jar| jar.size = 2));
        let error = jars.update_all(changed).await.unwrap_err().to_string();
        assert!(error.contains("a trigger of the table `jars`"), "{error}");
    }
}
