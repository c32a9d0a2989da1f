//! What scripts leave behind: open transactions.

use ekbatan::prelude::*;
use support::TestDatabase;

/// On the databases that commit each `CREATE`, `ALTER` and `DROP` by itself.
mod on_mysql {
    use super::*;

    on_every_database! {
        only mysql and mariadb:
        a_transaction_that_a_script_leaves_open_is_committed,
    }

    async fn a_transaction_that_a_script_leaves_open_is_committed(db: &TestDatabase) {
        let open = "SET autocommit = 0; CREATE TABLE list (n integer); INSERT INTO list VALUES (1)";
        let scripts = Migrations::none().script(10, "list", open);
        for _ in 0..2 {
            db.databases.migrate(&scripts).await.unwrap();
        }
        assert_eq!(db.count("list").await, 1);
    }
}
