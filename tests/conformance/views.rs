//! A model whose table is a view, which a trigger writes through.

use ekbatan::domain::New;
use ekbatan::prelude::*;
use support::TestDatabase;
use support::things::ThingState;

on_every_database! { only sqlite: a_row_of_a_view_is_changed_once }

#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "cups", name = "Cup")]
struct Cup {
    id: Id<Cup>,
    sips: i64,
    state: ThingState,
}

const CUPS: &str = "
    CREATE TABLE kept_cups (id TEXT PRIMARY KEY, sips INTEGER, state TEXT, version INTEGER);
    CREATE VIEW cups AS SELECT * FROM kept_cups;
    CREATE TRIGGER new_cup INSTEAD OF INSERT ON cups BEGIN
        INSERT INTO kept_cups VALUES (NEW.id, NEW.sips, NEW.state, NEW.version);
    END;
    CREATE TRIGGER changed_cup INSTEAD OF UPDATE ON cups BEGIN
        UPDATE kept_cups SET sips = sips + NEW.sips - OLD.sips, state = NEW.state, version = NEW.version
        WHERE id = OLD.id;
    END";

async fn a_row_of_a_view_is_changed_once(db: &TestDatabase) {
    db.execute(CUPS).await;
    let cups = db.databases.repository::<Cup>();
    let cup = Cup { id: Id::new(), sips: 0, state: ThingState::Active };
    let poured = cups.add(New::new(cup, ())).await.unwrap();
    let drunk = cups.update(poured.clone().apply(|cup| cup.sips += 1)).await.unwrap();
    assert_eq!(cups.get(poured.id).await.unwrap(), drunk);
    assert_eq!((drunk.sips, drunk.version()), (1, 2));
    // The database refuses a change that is based on the earlier version.
    cups.update(poured.apply(|cup| cup.sips += 1)).await.unwrap_err();
    assert_eq!(cups.find_all().await.unwrap(), [drunk]);
}
