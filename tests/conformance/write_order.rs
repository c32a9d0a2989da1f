//! The order in which the rows of one commit are written.

use ekbatan::domain::New;
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};
use support::things::{Thing, ThingState, Zone, thing, zone};
use support::{Dialect, TestDatabase};

use crate::actions::run;

on_every_database! {
    a_new_row_takes_a_unique_value_that_another_row_gives_up,
    a_changed_row_refers_to_a_new_row,
}

fn named(id: u128, label: &str) -> Thing {
    Thing { id: Id::from_uuid(Uuid::from_u128(id)), ..thing(label) }
}

async fn a_new_row_takes_a_unique_value_that_another_row_gives_up(db: &TestDatabase) {
    let executor = db.executor().await;
    let old = db.databases.repository::<Zone>().add(new(zone("old"))).await.unwrap();
    for (giver, taker) in [(1, 2), (4, 3)] {
        let label = format!("label {giver}");
        let given = Thing { zone: Some(old.id), ..named(giver, &label) };
        let given = db.things().add(new(given)).await.unwrap();
        run(&executor, |ctx| {
            ctx.plan().update(given.clone().apply(|thing| thing.label = format!("{giver}, old")));
            ctx.plan().add(new(named(taker, &label)));
            // A new row that no row refers to makes no difference.
            ctx.plan().add(new(zone("a")));
            Ok(())
        })
        .await
        .unwrap();
        assert_eq!(db.things().find_where(Thing::LABEL.eq(label)).await.unwrap().len(), 1);
    }
    assert_eq!(db.count("things").await, 4);
}

fn new<T: Entity>(value: T) -> New<T> {
    New::new(value, ())
}

/// A row of a table that refers to itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Entity)]
#[entity(table = "branches", name = "Branch")]
struct Branch {
    id: Id<Branch>,
    parent: Option<Id<Branch>>,
    state: ThingState,
}

/// Not every database checks foreign keys at the end of the commit.
async fn a_changed_row_refers_to_a_new_row(db: &TestDatabase) {
    let id = match db.dialect {
        Dialect::Sqlite => "TEXT",
        Dialect::Postgres | Dialect::MariaDb => "uuid",
        Dialect::MySql => "char(36) CHARACTER SET ascii COLLATE ascii_bin",
    };
    let create = format!(
        "CREATE TABLE branches (id {id} NOT NULL PRIMARY KEY, parent {id}, state varchar(24) NOT NULL, \
         version bigint NOT NULL, FOREIGN KEY (parent) REFERENCES branches (id))"
    );
    db.execute(&create).await;
    let builder = ActionExecutor::builder(&db.databases, "com.example.branches");
    let executor = builder.model::<Branch>().model::<Thing>().build().await.unwrap();
    let branches = db.databases.repository::<Branch>();
    let branch = |parent| Branch { id: Id::new(), parent, state: ThingState::Active };
    let first = branches.add(new(branch(None))).await.unwrap();
    let other = db.things().add(new(thing("a"))).await.unwrap();
    let (parent, zone) = (branch(None), zone("a"));
    run(&executor, |ctx| {
        ctx.plan().update(first.clone().apply(|branch| branch.parent = Some(parent.id)));
        ctx.plan().add(new(parent.clone()));
        ctx.plan().update(other.clone().apply(|thing| thing.zone = Some(zone.id)));
        ctx.plan().add(new(zone.clone()));
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(branches.get(first.id).await.unwrap().parent, Some(parent.id));
    assert_eq!(db.things().get(other.id).await.unwrap().zone, Some(zone.id));
}
