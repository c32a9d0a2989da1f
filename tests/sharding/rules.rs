//! The rules that place rows: the reads that each rule allows, and the shards of its writes.

use std::io;

use ekbatan::domain::ShardIdentifier;
use ekbatan::prelude::*;
use ekbatan::repository::WriteError;
use ekbatan::shard::{ShardError, Sharding};

use crate::actions::{Nothing, stage};
use crate::models::{Account, Order, account, account_with, order, quiet};
use crate::shards::{FIRST, SECOND, SHARDS, THIRD, TestShards, UNKNOWN, executor_on};

on_every_layout! {
    without_a_rule_rows_with_plain_ids_are_on_the_default_shard,
    the_rule_none_places_every_row_on_the_default_shard,
    the_rule_embedded_reads_the_bits_of_a_plain_id,
    the_rule_by_id_places_and_finds_rows,
    the_rule_by_value_places_rows_and_refuses_reads_by_id,
    a_lookup_selects_the_shard_of_reads_by_id,
    a_lookup_without_an_entry_finds_nothing,
    a_failed_lookup_is_an_error,
    a_rule_that_names_an_unknown_shard_is_an_error,
    an_action_writes_to_the_shard_of_the_rule,
    a_rule_applies_to_repositories_made_after_it,
}

fn country(order: &Order) -> ShardIdentifier {
    match order.country.as_str() {
        "PL" => SECOND,
        "EE" => THIRD,
        "??" => UNKNOWN,
        _ => FIRST,
    }
}

async fn add(databases: &Databases, country: &str) -> Stored<Order> {
    databases.repository().add(quiet(order(country))).await.unwrap()
}

async fn without_a_rule_rows_with_plain_ids_are_on_the_default_shard(t: &TestShards) {
    let stored = add(&t.databases, "PL").await;
    assert_eq!(t.counts("orders").await, [1, 0, 0]);
    for shard in [SECOND, THIRD] {
        t.on(shard).hide("orders").await;
    }
    let orders = t.databases.repository::<Order>();
    assert_eq!(orders.get(stored.id).await.unwrap(), stored);
    assert_eq!(orders.find_all().await.unwrap(), [stored], "no other shard is queried");
}

async fn the_rule_none_places_every_row_on_the_default_shard(t: &TestShards) {
    let databases = t.databases.clone().with_sharding(Sharding::<Account>::none());
    let accounts = databases.repository::<Account>();
    for shard in [SECOND, UNKNOWN] {
        let stored = accounts.add(quiet(account(shard, "a"))).await.unwrap();
        assert_eq!(accounts.get(stored.id).await.unwrap(), stored);
    }
    let without_shard = account_with(ShardedId::from_uuid(Uuid::nil()), "a");
    accounts.add(quiet(without_shard)).await.unwrap();
    assert_eq!(t.counts("accounts").await, [3, 0, 0]);
    t.on(SECOND).hide("accounts").await;
    assert_eq!(accounts.count().await.unwrap(), 3, "no other shard is queried");
}

async fn the_rule_embedded_reads_the_bits_of_a_plain_id(t: &TestShards) {
    let databases = t.databases.clone().with_sharding(Sharding::<Order>::embedded());
    let orders = databases.repository::<Order>();
    let mut stored = Vec::new();
    for shard in SHARDS {
        let bits: ShardedId<Account> = ShardedId::new(shard);
        let order = Order { id: Id::from_uuid(bits.uuid()), ..order("x") };
        stored.push(orders.add(quiet(order)).await.unwrap());
    }
    assert_eq!(t.counts("orders").await, [1, 1, 1]);
    for order in &stored {
        assert_eq!(orders.get(order.id).await.unwrap(), *order);
    }
    assert_eq!(orders.find_all().await.unwrap(), stored);
    // A client may send any id.
    let unknown = Id::from_uuid(ShardedId::<Account>::new(UNKNOWN).uuid());
    assert_eq!(orders.find(unknown).await.unwrap(), None);
    assert_eq!(orders.find_by_ids(&[unknown, stored[1].id]).await.unwrap(), stored[1..2]);
    let unplaced = Order { id: unknown, ..order("x") };
    let error = orders.add(quiet(unplaced)).await.unwrap_err();
    assert!(matches!(error, WriteError::Shard(ShardError::Unknown { .. })), "{error:?}");
    // A UUID of another version contains no shard.
    let random = Uuid::from_u128(0x4 << 76 | 0b10 << 62 | 0xFF << 54);
    let order = Order { id: Id::from_uuid(random), ..order("x") };
    let stored = orders.add(quiet(order)).await.unwrap();
    assert_eq!(t.counts("orders").await, [2, 1, 1]);
    assert_eq!(orders.get(stored.id).await.unwrap(), stored);
}

async fn the_rule_by_id_places_and_finds_rows(t: &TestShards) {
    let rule = |id: Id<Order>| SHARDS[usize::from(id.uuid().as_bytes()[15]) % 3];
    let databases = t.databases.clone().with_sharding(Sharding::<Order>::by_id(rule));
    let orders = databases.repository::<Order>();
    for n in 0..6u8 {
        let mut bytes = *Uuid::now_v7().as_bytes();
        bytes[15] = n;
        let order = Order { id: Id::from_uuid(Uuid::from_bytes(bytes)), ..order("x") };
        let stored = orders.add(quiet(order)).await.unwrap();
        assert_eq!(orders.get(stored.id).await.unwrap(), stored);
    }
    assert_eq!(t.counts("orders").await, [2, 2, 2]);
    assert_eq!(orders.count().await.unwrap(), 6);
}

async fn the_rule_by_value_places_rows_and_refuses_reads_by_id(t: &TestShards) {
    let databases = t.databases.clone().with_sharding(Sharding::by_value(country));
    let mut stored = Vec::new();
    for country in ["DE", "PL", "EE"] {
        stored.push(add(&databases, country).await);
    }
    assert_eq!(t.counts("orders").await, [1, 1, 1]);
    let orders = databases.repository::<Order>();
    let id = stored[1].id;
    for error in [
        orders.get(id).await.map(drop).unwrap_err(),
        orders.exists(id).await.map(drop).unwrap_err(),
        orders.find_by_ids(&[id]).await.map(drop).unwrap_err(),
    ] {
        assert!(
            matches!(error, ReadError::Shard(ShardError::NotById { model: "Order", .. })),
            "{error:?}"
        );
    }
    assert_eq!(orders.find_all().await.unwrap(), stored);
    // A transaction reads only its own shard.
    let transactions = databases.shard(SECOND).unwrap().transactions();
    let found = transactions
        .in_transaction(async |transaction| orders.within(&transaction).get(id).await)
        .await;
    assert_eq!(found.unwrap(), stored[1]);
    let polish = orders.find_one(Order::COUNTRY.eq("PL")).await.unwrap();
    assert_eq!(polish, Some(stored.remove(1)));
    // A change of the deciding field does not move the row.
    let moved = stored.remove(0).change(|order| {
        order.country = "EE".to_owned();
        Ok::<_, io::Error>(())
    });
    let error = orders.update(moved.unwrap()).await.unwrap_err();
    assert!(matches!(error, WriteError::Stale(_)), "{error:?}");
    assert_eq!(t.counts("orders").await, [1, 1, 1]);
}

async fn a_lookup_selects_the_shard_of_reads_by_id(t: &TestShards) {
    let by_value = t.databases.clone().with_sharding(Sharding::by_value(country));
    let stored = [add(&by_value, "PL").await, add(&by_value, "EE").await];
    let known = stored.each_ref().map(|order| (order.id, country(order)));
    let lookup = move |id| {
        let shard = known.iter().find(|(known, _)| *known == id).map(|(_, shard)| *shard);
        async move { Ok::<_, io::Error>(shard) }
    };
    let databases =
        t.databases.clone().with_sharding(Sharding::by_value(country).with_lookup(lookup));
    let orders = databases.repository::<Order>();
    t.on(FIRST).hide("orders").await;
    for order in &stored {
        assert_eq!(orders.get(order.id).await.unwrap(), *order);
        assert!(orders.exists(order.id).await.unwrap());
    }
    let unknown = Id::new();
    let mut found = orders.find_by_ids(&[stored[0].id, unknown, stored[1].id]).await.unwrap();
    found.sort_by_key(|order| order.id);
    assert_eq!(found, stored);
}

async fn a_lookup_without_an_entry_finds_nothing(t: &TestShards) {
    let stored = add(&t.databases, "DE").await;
    let sharding = Sharding::<Order>::none().with_lookup(|_| async { Ok::<_, io::Error>(None) });
    let orders = t.databases.clone().with_sharding(sharding).repository::<Order>();
    assert_eq!(orders.find(stored.id).await.unwrap(), None);
    assert!(!orders.exists(stored.id).await.unwrap());
    assert_eq!(orders.find_by_ids(&[stored.id]).await.unwrap(), []);
    let error = orders.get(stored.id).await.unwrap_err();
    assert!(matches!(error, ReadError::NotFound { .. }), "{error:?}");
}

async fn a_failed_lookup_is_an_error(t: &TestShards) {
    let stored = add(&t.databases, "DE").await;
    let sharding = Sharding::<Order>::none()
        .with_lookup(|_| async { Err::<Option<ShardIdentifier>, _>("the directory is closed") });
    let orders = t.databases.clone().with_sharding(sharding).repository::<Order>();
    for error in [
        orders.get(stored.id).await.map(drop).unwrap_err(),
        orders.find_by_ids(&[stored.id]).await.map(drop).unwrap_err(),
    ] {
        match &error {
            ReadError::Shard(ShardError::Lookup { model: "Order", id, .. }) => {
                assert_eq!(*id, stored.id.uuid());
            }
            other => panic!("{other:?}"),
        }
        assert!(error.to_string().contains("the directory is closed"), "{error}");
    }
    assert_eq!(orders.count().await.unwrap(), 1, "reads by condition need no lookup");
}

async fn a_rule_that_names_an_unknown_shard_is_an_error(t: &TestShards) {
    let sharding =
        Sharding::by_value(country).with_lookup(|_| async { Ok::<_, io::Error>(Some(UNKNOWN)) });
    let orders = t.databases.clone().with_sharding(sharding).repository::<Order>();
    let error = orders.add(quiet(order("??"))).await.unwrap_err();
    assert!(matches!(error, WriteError::Shard(ShardError::Unknown { .. })), "{error:?}");
    let error = orders.get(Id::new()).await.unwrap_err();
    assert!(matches!(error, ReadError::Shard(ShardError::Unknown { .. })), "{error:?}");
    t.assert_nothing_written().await;
}

async fn an_action_writes_to_the_shard_of_the_rule(t: &TestShards) {
    let databases = t.databases.clone().with_sharding(Sharding::by_value(country));
    let executor = executor_on(&databases).await;
    let polish = stage(|ctx| drop(ctx.plan().add(quiet(order("PL")))));
    executor.execute(&polish, Nothing {}).await.unwrap();
    assert_eq!(t.counts("orders").await, [0, 1, 0]);
    assert_eq!(t.eventlog_counts("events").await, [0, 1, 0]);
    let both = stage(|ctx| {
        ctx.plan().add(quiet(order("PL")));
        ctx.plan().add(quiet(order("EE")));
    });
    match executor.execute(&both, Nothing {}).await.unwrap_err() {
        ExecuteError::CrossShard { shards, .. } => assert_eq!(shards, [SECOND, THIRD]),
        other => panic!("{other:?}"),
    }
    assert_eq!(t.counts("orders").await, [0, 1, 0]);
}

async fn a_rule_applies_to_repositories_made_after_it(t: &TestShards) {
    let before = t.databases.repository::<Order>();
    let databases = t.databases.clone().with_sharding(Sharding::<Order>::by_id(|_| THIRD));
    databases.repository().add(quiet(order("a"))).await.unwrap();
    before.add(quiet(order("b"))).await.unwrap();
    t.databases.repository().add(quiet(order("c"))).await.unwrap();
    assert_eq!(t.counts("orders").await, [2, 0, 1]);
}
