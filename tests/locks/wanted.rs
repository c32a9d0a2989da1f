//! Backends that mark a key as wanted, so that its holder leaves it to another process.

use ekbatan::lock::{Attempt, GrantRequest, LockBackend, Released, SqliteLocks};
use ekbatan_testkit::TempSqlite;
use support::until;
use uuid::Uuid;

use crate::grants::on_server;
use crate::providers::{Kind, LONG};
use crate::sql::place::Place;

on_providers! {
    |kind| kind;
    [sqlite, postgres_session, mysql_lease, mysql_session, mariadb_lease, mariadb_session]
    a_key_is_wanted_by_a_caller_that_waits,
}

const KEY: &str = "k";

async fn a_key_is_wanted_by_a_caller_that_waits(kind: Kind) {
    if kind == Kind::Sqlite {
        let file = TempSqlite::new().unwrap();
        let (one, other) = (in_a_file(&file).await, in_a_file(&file).await);
        return is_wanted(&*one, &*other).await;
    }
    let place = Place::shared(kind).await;
    let (one, other) = (on_server(&place).await, on_server(&place).await);
    is_wanted(&*one, &*other).await;
    one.close().await;
    other.close().await;
}

async fn in_a_file(file: &TempSqlite) -> Box<dyn LockBackend> {
    Box::new(SqliteLocks::connect(&file.url()).await.unwrap().leases().await.unwrap())
}

/// In the end, because a mark can be over before the key is released.
async fn is_wanted(one: &dyn LockBackend, other: &dyn LockBackend) {
    until("a release says that the key is wanted", async || {
        let request = GrantRequest::new(Uuid::new_v4(), "a test", LONG);
        let taken = one.try_grant(KEY, &request).await.unwrap();
        let Attempt::Granted(grant) = taken else { panic!("{taken:?} of a free key") };
        let waits = GrantRequest::new(Uuid::new_v4(), "a test", LONG).waiting();
        let tried = other.try_grant(KEY, &waits).await.unwrap();
        assert!(matches!(tried, Attempt::Busy(_)), "{tried:?} of a taken key");
        // A session marks keys after its answer, and before the next one.
        other.inspect(KEY).await.unwrap();
        let Released { ours, wanted } = one.release(KEY, &grant).await.unwrap();
        assert!(ours);
        wanted
    })
    .await;
}
