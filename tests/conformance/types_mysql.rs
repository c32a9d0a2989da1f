//! The column types of MySQL and MariaDB: a value is stored unchanged or refused by name.

use std::time::Duration;

use ekbatan::action::Fence;
use ekbatan::chrono::NaiveDate;
use ekbatan::db::{DbError, DbErrorKind, SchemaError};
use ekbatan::domain::New;
use ekbatan::prelude::*;
use ekbatan::repository::{Direction, PageRequest, WriteError};
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use support::things::{Color, Settings, Thing, ThingState, quiet, thing};
use support::{Dialect, TestDatabase};

use crate::actions::{Refused, run};

on_every_database! {
    only mysql and mariadb:
    ids_may_be_text_bytes_or_the_native_type,
    rows_of_one_table_that_refer_to_each_other_are_added_in_one_plan,
    edge_values_of_every_type_round_trip,
    a_value_that_a_column_would_change_is_refused,
    a_row_that_is_too_long_is_refused_and_the_next_row_is_stored,
    lossy_columns_are_named,
    tables_of_engines_without_transactions_are_only_read,
    pages_by_enum_return_every_row_once,
    both_timestamp_types_store_utc,
    the_greatest_numbers_without_a_sign_are_read,
}

/// A node of a tree. Its table has a foreign key on itself.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "nodes", name = "Node")]
struct Node {
    id: Id<Node>,
    parent: Option<Id<Node>>,
    label: String,
    at: DateTime<Utc>,
    state: ThingState,
}

fn node(label: &str, parent: Option<Id<Node>>) -> Node {
    let at = DateTime::from_timestamp_micros(1_720_000_000_123_457).unwrap();
    Node { id: Id::new(), parent, label: label.to_owned(), at, state: ThingState::Active }
}

async fn create_nodes(db: &TestDatabase, id: &str, at: &str) {
    db.execute(&format!(
        "DROP TABLE IF EXISTS nodes; CREATE TABLE nodes (id {id} NOT NULL PRIMARY KEY, parent {id}, \
         label varchar(20) NOT NULL, at {at} NOT NULL, state varchar(24) NOT NULL, version bigint NOT NULL, \
         CONSTRAINT node_parent FOREIGN KEY (parent) REFERENCES nodes (id))"
    ))
    .await;
}

async fn ids_may_be_text_bytes_or_the_native_type(db: &TestDatabase) {
    let native = (db.dialect == Dialect::MariaDb).then_some("uuid");
    for ty in ["char(36)", "char(36) CHARACTER SET ascii", "binary(16)"].into_iter().chain(native) {
        create_nodes(db, ty, "datetime(6)").await;
        let again = db.open_again().await;
        let nodes = again.repository::<Node>();
        let root = nodes.add(New::new(node("root", None), ())).await.unwrap();
        let children = (0..5).map(|n| New::new(node(&n.to_string(), Some(root.id)), ()));
        let children = nodes.add_all(children).await.unwrap();
        let first = nodes.update(root.clone().apply(|node| node.label.push('!'))).await.unwrap();
        let changed = children.into_iter().map(|node| node.apply(|node| node.label.push('!')));
        let mut expected = nodes.update_all(changed).await.unwrap();
        assert_eq!(nodes.get(root.id).await.unwrap(), first);
        assert_eq!(nodes.count_where(Node::PARENT.eq(root.id)).await.unwrap(), 5);
        let ids: Vec<Id<Node>> = expected.iter().map(|node| node.id).collect();
        assert_eq!(nodes.find_by_ids(&ids).await.unwrap().len(), 5, "{ty}");
        assert_eq!(nodes.find_where(Node::ID.is_in(ids)).await.unwrap().len(), 5, "{ty}");
        expected.push(first);
        expected.sort_by_key(|node| node.id.uuid());
        let mut page = nodes.page(PageRequest::first(4)).await.unwrap();
        let mut paged = page.rows;
        page = nodes.page(page.next.unwrap()).await.unwrap();
        paged.extend(page.rows);
        paged.sort_by_key(|node| node.id.uuid());
        assert_eq!(paged, expected, "{ty}");
        assert!(nodes.update(root.apply(|_| ())).await.is_err(), "the row is stale");
    }
}

/// The ids sort in the opposite of the order in which the rows must be inserted.
async fn rows_of_one_table_that_refer_to_each_other_are_added_in_one_plan(db: &TestDatabase) {
    create_nodes(db, "binary(16)", "datetime(6)").await;
    let id = |n: u128| Id::<Node>::from_uuid(Uuid::from_u128(n));
    let chain: Vec<Node> =
        (1..=40).map(|n| Node { id: id(n), ..node("n", (n < 40).then(|| id(n + 1))) }).collect();
    run(&db.executor().await, |ctx| {
        Ok(ctx.plan().add_all(chain.iter().cloned().map(|node| New::new(node, ()))))
    })
    .await
    .unwrap();
    assert_eq!(db.count("nodes").await, 40);
}

/// MariaDB stores no negative zero.
fn same_float(db: &TestDatabase, found: f64, value: f64) -> bool {
    match db.dialect {
        Dialect::MariaDb if value == 0.0 => found == 0.0,
        _ => found.to_bits() == value.to_bits(),
    }
}

async fn edge_values_of_every_type_round_trip(db: &TestDatabase) {
    let day = |text: &str| text.parse::<NaiveDate>().unwrap();
    let at = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
    let edges = [
        Thing {
            ratio: -0.0,
            note: Some("two spaces  ".into()),
            raw: vec![],
            big: i64::MIN,
            small: i32::MIN,
            day: day("1000-01-01"),
            at: at("1000-01-01T00:00:00Z"),
            ..thing("a ")
        },
        Thing {
            ratio: f64::MAX,
            note: Some("\u{1F980}'\"\\\0\n%_`".into()),
            raw: (0..=254).collect(),
            day: day("9999-12-31"),
            at: at("9999-12-31T23:59:59.999999Z"),
            price: "-999999999999999999.99".parse().unwrap(),
            ..thing("a")
        },
        Thing {
            ratio: f64::MIN_POSITIVE,
            note: Some(String::new()),
            raw: b"\0 \0".to_vec(),
            settings: Settings { tags: vec!["\u{0}\u{1F980}\\\"".into()], depth: Some(i64::MIN) },
            weight: Some("0.0000000001".parse().unwrap()),
            ..thing("A")
        },
        Thing { ratio: 0.1 + 0.2, ..thing("") },
    ];
    for (n, value) in edges.iter().enumerate() {
        let alone = Thing { id: Id::new(), label: format!("{}#{n}", value.label), ..value.clone() };
        let stored = db.things().add(quiet(alone)).await.unwrap();
        let found = db.things().get(stored.id).await.unwrap();
        assert_eq!(found, stored);
        assert!(same_float(db, found.ratio, value.ratio), "{} {}", found.ratio, value.ratio);
    }
    let stored = db.things().add_all(edges.iter().cloned().map(quiet)).await.unwrap();
    let touched = stored.into_iter().map(|thing| thing.apply(|thing| thing.cents.0 += 1));
    let stored = db.things().update_all(touched).await.unwrap();
    for (stored, value) in stored.iter().zip(&edges) {
        let found = db.things().get(stored.id).await.unwrap();
        assert_eq!(found, *stored);
        assert!(same_float(db, found.ratio, value.ratio), "{} {}", found.ratio, value.ratio);
        assert_eq!(
            db.things().find_one(Thing::LABEL.eq(&*value.label)).await.unwrap(),
            Some(found)
        );
    }
}

async fn a_value_that_a_column_would_change_is_refused(db: &TestDatabase) {
    let year = |year: i32| NaiveDate::from_ymd_opt(year, 1, 1).unwrap();
    let executor = db.executor().await;
    for (value, named) in [
        (Thing { ratio: f64::NAN, ..thing("a") }, "NaN"),
        (Thing { ratio: f64::NEG_INFINITY, ..thing("a") }, "-inf"),
        (Thing { day: year(999), ..thing("a") }, "0999-01-01"),
        (Thing { day: year(10_000), ..thing("a") }, "+10000-01-01"),
        (thing(&"x".repeat(256)), "label"),
        (thing(&format!("{} ", "x".repeat(255))), "label"),
        (Thing { raw: vec![0; 256], ..thing("a") }, "raw"),
    ] {
        let error =
            run(&executor, |ctx| Ok(ctx.plan().add(quiet(value.clone())))).await.unwrap_err();
        let kind = error.database_error().map(|error| error.kind());
        assert_eq!(kind, Some(DbErrorKind::ValueOutOfRange), "{error}");
        assert!(error.to_string().contains(named), "{error}");
    }
    let error = db.things().find_where(Thing::RATIO.eq(f64::NAN)).await.unwrap_err();
    assert!(error.to_string().contains("NaN"), "{error}");
    assert_eq!(db.count("things").await, 0);
}

async fn a_row_that_is_too_long_is_refused_and_the_next_row_is_stored(db: &TestDatabase) {
    let longest: usize =
        db.select(&["@@max_allowed_packet"], "").await[0][0].as_deref().unwrap().parse().unwrap();
    let settings = Settings { tags: vec!["x".repeat(longest)], depth: None };
    match db.things().add(quiet(Thing { settings, ..thing("a") })).await.map(drop) {
        Err(WriteError::Database(error)) => {
            assert_eq!(error.kind(), DbErrorKind::TooLarge);
            assert!(error.to_string().contains("column `settings`"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // Rows that are too long only together are sent in several packets.
    let settings = Settings { tags: vec!["x".repeat(longest / 10)], depth: None };
    let things =
        (0..8).map(|n| quiet(Thing { settings: settings.clone(), ..thing(&n.to_string()) }));
    let stored = db.things().add_all(things).await.unwrap();
    let touched = stored.into_iter().map(|thing| thing.apply(|thing| thing.big = 1));
    db.things().update_all(touched).await.unwrap();
    assert_eq!(db.count("things").await, 8);
}

async fn lossy_columns_are_named(db: &TestDatabase) {
    create_nodes(db, "varchar(36)", "datetime(3)").await;
    let error = db.databases.check::<Node>().await.unwrap_err();
    match error.schema() {
        Some(SchemaError::Columns { model: "Node", problems, .. }) => {
            assert_eq!(problems.len(), 3, "{problems:?}");
            assert!(problems[0].contains("`id`") && problems[0].contains("char(36)"));
            assert!(problems[2].contains("datetime(3)") && problems[2].contains("datetime(6)"));
        }
        other => panic!("{other:?}"),
    }
}

/// An enum column sorts by declaration, which here is not alphabetical.
async fn pages_by_enum_return_every_row_once(db: &TestDatabase) {
    let things = (0..10).map(|n| {
        let color = if n % 3 == 0 { Color::Red } else { Color::Green };
        quiet(Thing { color, ..thing(&n.to_string()) })
    });
    db.things().add_all(things).await.unwrap();
    let mut labels = Vec::new();
    let mut next = Some(PageRequest::first(3).order_by(Thing::COLOR, Direction::Ascending));
    while let Some(request) = next {
        let page = db.things().page(request).await.unwrap();
        labels.extend(page.rows.iter().map(|thing| thing.label.clone()));
        next = page.next;
    }
    labels.sort();
    assert_eq!(labels, (0..10).map(|n| n.to_string()).collect::<Vec<_>>());
}

/// The server converts `timestamp` between UTC and the time zone of the session, and stores
/// `datetime` as written. Both return the written instant, in any time zone of the server.
async fn both_timestamp_types_store_utc(db: &TestDatabase) {
    for ty in ["datetime(6)", "timestamp(6)"] {
        create_nodes(db, "char(36)", ty).await;
        let again = db.open_again().await;
        let nodes = again.repository::<Node>();
        let stored = nodes.add_all((0..3).map(|_| New::new(node("a", None), ()))).await.unwrap();
        let changed = stored.into_iter().map(|node| node.apply(|node| node.label.push('b')));
        for node in nodes.update_all(changed).await.unwrap() {
            assert_eq!(nodes.get(node.id).await.unwrap(), node);
        }
        assert_eq!(nodes.count_where(Node::AT.eq(node("", None).at)).await.unwrap(), 3);
        let shown = db.select(&["at"], "FROM nodes LIMIT 1").await;
        assert_eq!(shown, [[Some("2024-07-03 09:46:40.123457".to_owned())]], "{ty}");
    }
    let late = Node { at: "2999-01-01T00:00:00Z".parse().unwrap(), ..node("late", None) };
    create_nodes(db, "char(36)", "timestamp(6)").await;
    match db.open_again().await.repository().add(New::new(late, ())).await.unwrap_err() {
        WriteError::Database(error) => assert_eq!(error.kind(), DbErrorKind::ValueOutOfRange),
        other => panic!("{other:?}"),
    }
}

/// Numbers of every width without a sign.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "meters", name = "Meter")]
struct Meter {
    id: Id<Meter>,
    tiny: u8,
    /// Of a width that stands for a boolean elsewhere.
    digit: i32,
    small: u16,
    medium: u32,
    whole: u32,
    filled: i64,
    state: ThingState,
}

/// Reads a meter by its id.
struct ReadMeter;

#[derive(Serialize, Deserialize)]
struct Wanted {
    meter: Id<Meter>,
}

impl Action for ReadMeter {
    const NAME: &'static str = "conformance.read_meter";
    type Params = Wanted;
    type Output = Stored<Meter>;
    type Error = Refused;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Wanted,
    ) -> Result<Stored<Meter>, Refused> {
        ctx.get(params.meter).await.map_err(|_| Refused)
    }
}

async fn the_greatest_numbers_without_a_sign_are_read(db: &TestDatabase) {
    db.execute(
        "CREATE TABLE meters (id char(36) NOT NULL PRIMARY KEY, tiny tinyint unsigned NOT NULL, \
         digit tinyint(1) unsigned NOT NULL, small smallint unsigned NOT NULL, \
         medium mediumint unsigned NOT NULL, whole int unsigned NOT NULL, \
         filled int(10) unsigned zerofill NOT NULL, state varchar(24) NOT NULL, \
         version bigint NOT NULL)",
    )
    .await;
    let meters = db.databases.repository::<Meter>();
    let meter = |whole, filled| {
        let (tiny, digit, small, medium) = (u8::MAX, 255, u16::MAX, (1 << 24) - 1);
        let (id, state) = (Id::new(), ThingState::Active);
        New::new(Meter { id, tiny, digit, small, medium, whole, filled, state }, ())
    };
    let most = i64::from(u32::MAX);
    let added = meters.add_all([meter(3_000_000_000, 7), meter(u32::MAX, most)]).await.unwrap();
    let changed = added.into_iter().map(|meter| meter.apply(|_| ()));
    let stored = meters.update_all(changed).await.unwrap();

    // Reads of one moment may share a statement.
    let found = try_join_all(stored.iter().map(|meter| meters.get(meter.id))).await.unwrap();
    assert_eq!(found, stored);
    let by_whole = PageRequest::first(1).order_by(Meter::WHOLE, Direction::Ascending);
    let first = meters.page(by_whole).await.unwrap();
    let second = meters.page(first.next.unwrap()).await.unwrap();
    assert_eq!([first.rows, second.rows].concat(), stored);
    assert_eq!(meters.find_where(Meter::FILLED.eq(most)).await.unwrap(), stored[1..]);

    // The first read under a fence is sent as text.
    let executor = db.executor().await;
    let fence = Fence { key: "meters".into(), token: 1, remaining: Duration::from_secs(600) };
    for meter in stored {
        let call = executor.execute(&ReadMeter, Wanted { meter: meter.id }).fenced_by(&fence);
        assert_eq!(call.await.unwrap(), meter);
    }
}

/// A table that other programs create. Its rows have no foreign keys, which MyISAM does not have.
async fn create_nodes_of(db: &TestDatabase, engine: &str) {
    db.execute(&format!(
        "DROP TABLE IF EXISTS nodes; CREATE TABLE nodes (id char(36) NOT NULL PRIMARY KEY, parent char(36), \
         label varchar(20) NOT NULL, at datetime(6) NOT NULL, state varchar(24) NOT NULL, \
         version bigint NOT NULL) ENGINE={engine}"
    ))
    .await;
}

/// ROLLBACK leaves what was written to such a table.
async fn tables_of_engines_without_transactions_are_only_read(db: &TestDatabase) {
    let aria = (db.dialect == Dialect::MariaDb).then_some("Aria");
    for engine in ["MyISAM", "MEMORY"].into_iter().chain(aria) {
        create_nodes_of(db, engine).await;
        let expected = format!(
            "table `nodes` is stored by {engine}, which cannot undo a commit; \
             `ALTER TABLE nodes ENGINE=InnoDB` stores it by an engine that can"
        );
        let named = |error: String| assert!(error.ends_with(&expected), "{error}");
        let databases = db.open_again().await;
        named(databases.check::<Node>().await.unwrap_err().to_string());
        let executor = ActionExecutor::builder(&databases, "a").model::<Node>().build().await;
        named(executor.unwrap_err().to_string());
        let nodes = databases.repository::<Node>();
        let added = New::new(node("root", None), ());
        named(nodes.add(added.clone()).await.unwrap_err().to_string());
        let transactions = databases.transactions();
        let within = transactions.in_transaction(async |tx| {
            let added = nodes.within(&tx).add(added.clone()).await;
            named(added.unwrap_err().to_string());
            Ok::<_, DbError>(())
        });
        within.await.unwrap();
        assert_eq!(nodes.count().await.unwrap(), 0, "it can be read");
    }
    for engine in ["InnoDB", "InnoDB PARTITION BY KEY (id) PARTITIONS 2"] {
        create_nodes_of(db, engine).await;
        db.open_again().await.check::<Node>().await.unwrap();
    }
}
