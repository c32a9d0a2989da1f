//! Columns that change their types while the application runs.

use ekbatan::db::Transaction;
use ekbatan::prelude::*;
use support::things::{THINGS, Thing, migrations, quiet, thing};
use support::{Dialect, TestDatabase};

use crate::actions::run;

on_every_database! {
    only postgres and mysql and mariadb:
    reads_and_commits_go_on_after_a_column_changed_its_type,
    a_transaction_after_the_change_reads_at_its_second_attempt,
}

async fn widen(db: &TestDatabase) {
    let sql = match db.dialect {
        Dialect::Postgres => {
            "ALTER TABLE things ALTER COLUMN note TYPE varchar(500), ALTER COLUMN small TYPE bigint"
        }
        _ => "ALTER TABLE things MODIFY note varchar(500), MODIFY small bigint NOT NULL",
    };
    db.execute(sql).await;
}

async fn reads_and_commits_go_on_after_a_column_changed_its_type(db: &TestDatabase) {
    let things = db.things();
    let stored = things.add(quiet(thing("a"))).await.unwrap();
    let id = stored.id;
    let by_label = || Thing::LABEL.eq("a");
    for changed in [false, true] {
        if changed {
            widen(db).await;
        }
        // Each statement is prepared before the change and used after it.
        let read = things.get(id).await.unwrap();
        assert_eq!((read.small, read.note.as_deref()), (-7, Some("a note")));
        assert_eq!(things.find_where(by_label()).await.unwrap(), std::slice::from_ref(&read));
        assert_eq!(things.find_by_ids(&[id]).await.unwrap(), std::slice::from_ref(&read));
        assert_eq!(things.find_all().await.unwrap().len(), 1);
        let version = read.version();
        let written = things.update(read.apply(|_| {})).await.unwrap();
        assert_eq!(written.version(), version + 1);
    }
}

/// PostgreSQL ends a transaction with its first error, so the first one cannot go on.
async fn a_transaction_after_the_change_reads_at_its_second_attempt(db: &TestDatabase) {
    let things = db.things();
    let id = things.add(quiet(thing("a"))).await.unwrap().id;
    things.get(id).await.unwrap();
    widen(db).await;
    let read = async |transaction: Transaction| things.within(&transaction).get(id).await;
    let transactions = db.databases.transactions();
    let first = transactions.in_transaction(read).await;
    assert_eq!(first.is_ok(), db.dialect != Dialect::Postgres, "{first:?}");
    transactions.in_transaction(read).await.unwrap();
}

mod migrated {
    use super::*;

    on_every_database! { only postgres: commits_go_on_after_a_migration_made_a_text_an_enum }

    /// There is one lane, which commits before and after the migration.
    async fn commits_go_on_after_a_migration_made_a_text_an_enum(db: &TestDatabase) {
        let databases = Databases::connect(&db.config().lanes(1).into()).await.unwrap();
        let executor = THINGS.executor_on(&databases).await;
        let things = databases.repository::<Thing>();
        things.add_all(["a", "b"].map(|label| quiet(thing(label)))).await.unwrap();
        let change = async || {
            // Each row alone, and then both in one statement.
            for thing in things.find_all().await.unwrap() {
                let update = |ctx: &mut ActionContext<'_>| {
                    Ok(ctx.plan().update(thing.clone().apply(|thing| thing.big -= 1)))
                };
                run(&executor, update).await.unwrap();
            }
            let found = things.find_all().await.unwrap().into_iter();
            things
                .update_all(found.map(|thing| thing.apply(|thing| thing.big -= 1)))
                .await
                .unwrap();
        };
        change().await;
        let remarks = "CREATE TYPE remark AS ENUM ('a note'); \
             ALTER TABLE things ALTER COLUMN note TYPE remark USING note::remark";
        databases.migrate(&migrations().script(3, "remarks", remarks)).await.unwrap();
        change().await;
        let versions: Vec<i64> =
            things.find_all().await.unwrap().iter().map(Stored::version).collect();
        assert_eq!(versions, [5, 5]);
    }
}
