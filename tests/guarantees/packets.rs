//! How long packets are: what the server accepts, for more than which it would close the connection,
//! and long commits.

use ekbatan::config::TlsMode;
use ekbatan::db::{DbError, DbErrorKind, Route};
use ekbatan::prelude::*;
use ekbatan::repository::WriteError;
use ekbatan_testkit::{MariaDbServer, MySqlServer};
use support::things::{THINGS, Thing, quiet, thing};
use support::{Dialect, ScratchDatabase};

use crate::ledger::proxied;

const PACKET: usize = 1 << 18;

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

async fn rows_that_exceed_a_packet_together_are_written(url: &str, tls: TlsMode) {
    let config = ScratchDatabase::config_of(url).tls_mode(tls);
    let databases = Databases::connect(&config.into()).await.unwrap();
    databases.migrate(&(THINGS.migrations)()).await.unwrap();
    let things = databases.repository::<Thing>();
    let long = |of: &str| Some(of.repeat(PACKET / 10));
    let many = (0..40).map(|n| quiet(Thing { note: long("x"), ..thing(&format!("thing {n}")) }));
    let added = things.add_all(many.collect::<Vec<_>>()).await.unwrap();
    let changes = added.into_iter().map(|row| row.apply(|thing| thing.note = long("y")));
    things.update_all(changes.collect::<Vec<_>>()).await.unwrap();
    let notes = things.find_all().await.unwrap().into_iter().map(|row| row.note.clone());
    assert_eq!(notes.collect::<Vec<_>>(), vec![long("y"); 40], "{tls:?}");
    databases.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_mysql() {
    let builder = MySqlServer::builder().setting("max_allowed_packet", "256K");
    let server = builder.start().await.unwrap();
    what_exceeds_a_packet_is_refused(&server.create_database().await.unwrap()).await;
    for tls in [TlsMode::Prefer, TlsMode::Disable] {
        let url = server.create_database().await.unwrap();
        rows_that_exceed_a_packet_together_are_written(&url, tls).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_mariadb() {
    let builder = MariaDbServer::builder().setting("max_allowed_packet", "256K");
    let server = builder.start().await.unwrap();
    what_exceeds_a_packet_is_refused(&server.create_database().await.unwrap()).await;
    let url = server.create_database().await.unwrap();
    rows_that_exceed_a_packet_together_are_written(&url, TlsMode::Prefer).await;
}

/// The round trips of a commit of 40 kB.
async fn trips_of_a_long_commit(dialect: Dialect, tls: TlsMode) -> u64 {
    let (url, proxy) = proxied(&ScratchDatabase::create(dialect).await.url).await;
    let config = ScratchDatabase::config_of(&url).lanes(1).tls_mode(tls);
    let databases = Databases::connect(&config.into()).await.unwrap();
    databases.migrate(&(THINGS.migrations)()).await.unwrap();
    let things = databases.repository::<Thing>();
    let long = |n: usize| Thing { note: Some("x".repeat(1_000)), ..thing(&format!("thing {n}")) };
    things.add(quiet(long(0))).await.unwrap(); // opens the connection
    proxy.reset();
    things.add_all((1..=40).map(|n| quiet(long(n)))).await.unwrap();
    let trips = proxy.round_trips();
    databases.close().await;
    trips
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_commit_is_one_packet_without_encryption() {
    for dialect in [Dialect::MySql, Dialect::MariaDb] {
        assert_eq!(trips_of_a_long_commit(dialect, TlsMode::Disable).await, 1, "{dialect:?}");
    }
}

/// The second record of a longer packet would wait for the acknowledgement of the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_commit_is_packets_of_one_record_with_encryption() {
    let trips = trips_of_a_long_commit(Dialect::MySql, TlsMode::Require).await;
    assert!((3..=5).contains(&trips), "{trips} round trips");
}
