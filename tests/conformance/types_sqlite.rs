//! The column types of SQLite: a text is read only in the spelling in which it is compared.

use ekbatan::prelude::*;
use support::TestDatabase;
use support::things::{Thing, quiet, thing};

on_every_database! {
    only sqlite:
    a_text_of_another_spelling_is_refused_with_its_column,
}

/// Another program, or a migration, has written what means the same and compares otherwise.
async fn a_text_of_another_spelling_is_refused_with_its_column(db: &TestDatabase) {
    let owner = Uuid::from_u128(0xAB);
    let (owner_text, owner_in_capitals) = (owner.to_string(), owner.to_string().to_uppercase());
    let owner_without_hyphens = owner.simple().to_string();
    let value = Thing { seen_at: Some(DateTime::UNIX_EPOCH), owner, ..thing("a") };
    let stored = db.things().add(quiet(value)).await.unwrap();
    let id = stored.id.uuid().to_string();
    let id_in_capitals = id.to_uppercase();
    for (column, other, expected) in [
        ("at", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000000Z"),
        ("seen_at", "2026-01-31T12:00:00.000000+01:00", "2026-01-31T11:00:00.000000Z"),
        ("created_date", "2026-01-31t12:00:00.000000Z", "2026-01-31T12:00:00.000000Z"),
        ("seen_on", "2026-1-5", "2026-01-05"),
        ("owner", &*owner_in_capitals, &*owner_text),
        ("owner", &*owner_without_hyphens, &*owner_text),
        ("id", &*id_in_capitals, &*id),
    ] {
        let update = |text: &str| format!("UPDATE things SET {column} = '{text}'");
        db.execute(&update(other)).await;
        let mut errors = vec![db.things().find_all().await.unwrap_err().to_string()];
        if column != "id" {
            errors.push(db.things().get(stored.id).await.unwrap_err().to_string());
        }
        for error in errors {
            let column = format!("`{column}`");
            for part in [&*column, other, expected] {
                assert!(error.contains(part), "{error}");
            }
        }
        db.execute(&update(expected)).await;
        assert_eq!(db.things().find_all().await.unwrap().len(), 1);
        assert_eq!(db.things().get(stored.id).await.unwrap().id, stored.id);
    }
}
