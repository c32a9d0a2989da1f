//! Texts on PostgreSQL whose types compare otherwise than `text`: conditions and pages compare as the column does.

use std::collections::BTreeSet;

use ekbatan::db::SchemaError;
use ekbatan::domain::New;
use ekbatan::prelude::*;
use ekbatan::repository::{Direction, PageRequest, Repository};
use support::TestDatabase;
use support::things::ThingState;

on_every_database! {
    only postgres:
    padded_texts_are_found_and_paged_as_they_are_read,
    texts_without_case_are_found_and_paged_in_any_case,
    texts_without_case_outside_of_the_search_path_are_named,
}

#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "parcels", name = "Parcel")]
struct Parcel {
    id: Id<Parcel>,
    code: String,
    state: ThingState,
}

async fn parcels(db: &TestDatabase, code: &str) -> Repository<Parcel> {
    db.execute(&format!(
        "CREATE TABLE parcels (id uuid PRIMARY KEY, code {code} NOT NULL, \
         state varchar(24) NOT NULL, version bigint NOT NULL)"
    ))
    .await;
    db.databases.repository()
}

/// Adds a parcel with each of the codes, one alone and the others together, and changes them once.
async fn add(parcels: &Repository<Parcel>, codes: &[&str]) {
    let parcel = |code: &&str| {
        let (id, code) = (Id::new(), (*code).to_owned());
        New::new(Parcel { id, code, state: ThingState::Active }, ())
    };
    parcels.add(parcel(&codes[0])).await.unwrap();
    parcels.add_all(codes[1..].iter().map(parcel)).await.unwrap();
    let changed = parcels.find_all().await.unwrap().into_iter().map(|parcel| parcel.apply(|_| ()));
    parcels.update_all(changed).await.unwrap();
}

/// Checks that pages of one and of two rows return every row once, in both directions.
async fn assert_pages(parcels: &Repository<Parcel>) {
    let all = parcels.find_all().await.unwrap();
    let ids: BTreeSet<Uuid> = all.iter().map(|parcel| parcel.id.uuid()).collect();
    for direction in [Direction::Ascending, Direction::Descending] {
        for size in [1, 2] {
            let mut paged = Vec::new();
            let mut next = Some(PageRequest::first(size).order_by(Parcel::CODE, direction));
            // A page that returns rows again would have a next one for ever.
            while let Some(request) = next.filter(|_| paged.len() <= all.len()) {
                let page = parcels.page(request).await.unwrap();
                paged.extend(page.rows.iter().map(|parcel| parcel.id.uuid()));
                next = page.next;
            }
            assert_eq!(paged.len(), all.len(), "{direction:?} {size}");
            assert_eq!(paged.into_iter().collect::<BTreeSet<_>>(), ids, "{direction:?} {size}");
        }
    }
}

async fn padded_texts_are_found_and_paged_as_they_are_read(db: &TestDatabase) {
    let parcels = parcels(db, "char(8)").await;
    add(&parcels, &["ab", "ab", "b", "", "abcdefgh"]).await;
    for (code, count) in [("ab", 2), ("ab      ", 2), ("", 1), ("abcdefgh", 1)] {
        let found = parcels.find_where(Parcel::CODE.eq(code)).await.unwrap();
        assert_eq!(found.len(), count, "{code:?}");
        assert_eq!(found[0].code, format!("{code:8}"));
        assert_eq!(parcels.count_where(Parcel::CODE.is_in([code])).await.unwrap(), count as u64);
    }
    assert_pages(&parcels).await;
}

async fn texts_without_case_are_found_and_paged_in_any_case(db: &TestDatabase) {
    db.execute("CREATE EXTENSION citext").await;
    let parcels = parcels(db, "citext").await;
    add(&parcels, &["a", "A", "B", "b", "c"]).await;
    for (code, count) in [("a", 2), ("b", 2), ("C", 1), ("d", 0)] {
        assert_eq!(parcels.count_where(Parcel::CODE.eq(code)).await.unwrap(), count, "{code}");
        let listed = Parcel::CODE.is_in([code, "e"]);
        assert_eq!(parcels.count_where(listed).await.unwrap(), count, "{code}");
    }
    assert_pages(&parcels).await;
}

/// Their operators are not found there, and the server would compare them as `text`.
async fn texts_without_case_outside_of_the_search_path_are_named(db: &TestDatabase) {
    db.execute("CREATE SCHEMA ext; CREATE EXTENSION citext SCHEMA ext").await;
    parcels(db, "ext.citext").await;
    let error = db.databases.check::<Parcel>().await.unwrap_err();
    match error.schema() {
        Some(SchemaError::Columns { problems, .. }) => {
            assert_eq!(problems.len(), 1, "{problems:?}");
            for part in ["`code`", "ext.citext", "search_path"] {
                assert!(problems[0].contains(part), "{problems:?}");
            }
        }
        other => panic!("{other:?}"),
    }
}
