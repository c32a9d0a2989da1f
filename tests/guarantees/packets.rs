//! Rows and parameters that are longer than a packet of the server. The server would close the
//! connection.

use ekbatan::db::{DbError, DbErrorKind, Route};
use ekbatan::prelude::*;
use ekbatan::repository::WriteError;
use ekbatan_testkit::{MariaDbServer, MySqlServer};
use support::ScratchDatabase;
use support::things::{THINGS, Thing, quiet, thing};

const PACKET: usize = 1 << 20;

fn assert_too_large(error: &DbError, value: &str) {
    assert_eq!(error.kind(), DbErrorKind::TooLarge, "{error}");
    let message = error.to_string();
    assert!(message.contains(value), "{error}");
    assert!(message.contains(&format!("max_allowed_packet is {PACKET}")), "{error}");
}

async fn what_exceeds_a_packet_is_refused(url: &str) {
    let databases = Databases::connect(&ScratchDatabase::config_of(url).into()).await.unwrap();
    databases.migrate(&(THINGS.migrations)()).await.unwrap();
    let things = databases.repository::<Thing>();
    let long = "x".repeat(PACKET);

    let large = Thing { note: Some(long.clone()), ..thing("a") };
    let error = things.add(quiet(large.clone())).await.unwrap_err();
    let WriteError::Database(error) = error else { panic!("{error:?}") };
    assert_too_large(&error, "column `note` of Thing");
    let stored = things.add(quiet(thing("a"))).await.unwrap();
    let error = things.update(stored.apply(|thing| thing.note = large.note)).await.unwrap_err();
    let WriteError::Database(error) = error else { panic!("{error:?}") };
    assert_too_large(&error, "column `note` of Thing");

    let error = things.find_where(Thing::LABEL.eq(&*long)).await.unwrap_err();
    let value = format!("parameter $1 of the query takes {PACKET} bytes");
    assert_too_large(error.database_error().unwrap(), &value);
    assert_eq!(databases.pool_status(Route::Primary).size, 1, "no connection was lost");
    assert_eq!(things.count().await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn on_mysql() {
    let server = MySqlServer::builder().setting("max_allowed_packet", "1M").start().await.unwrap();
    what_exceeds_a_packet_is_refused(&server.create_database().await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_mariadb() {
    let server =
        MariaDbServer::builder().setting("max_allowed_packet", "1M").start().await.unwrap();
    what_exceeds_a_packet_is_refused(&server.create_database().await.unwrap()).await;
}
