//! Scripts that leave their session so that their record could not be written.

use std::time::Duration;

use ekbatan::db::MigrationError;
use ekbatan::prelude::*;
use support::TestDatabase;

async fn names(db: &TestDatabase) -> Vec<String> {
    let applied = db.databases.migrations().await.unwrap();
    applied
        .into_iter()
        .filter(|done| done.source == "application" && done.version >= 10)
        .map(|done| done.name)
        .collect()
}

mod on_postgres {
    use super::*;

    on_every_database! {
        only postgres:
        a_script_that_waits_for_rows_is_refused,
    }

    async fn a_script_that_waits_for_rows_is_refused(db: &TestDatabase) {
        let copy = "CREATE TABLE list (n integer); COPY list FROM STDIN";
        let scripts = Migrations::none().script(10, "copy", copy);
        let migrating = db.databases.migrate(&scripts);
        let migrated = tokio::time::timeout(Duration::from_secs(60), migrating).await;
        let error = migrated.expect("it waits for rows").unwrap_err();
        assert!(matches!(error, MigrationError::Failed { version: 10, .. }), "{error:?}");
        assert!(error.to_string().contains("use INSERT"), "{error}");
        // Nothing is left of it, and the next migration waits for nothing.
        let list = "CREATE TABLE list (n integer)";
        db.databases.migrate(&Migrations::none().script(10, "list", list)).await.unwrap();
        assert_eq!(names(db).await, ["list"]);
    }
}
