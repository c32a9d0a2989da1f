//! Texts on MySQL and MariaDB: what an output says is what a later read returns, or the text is refused by its
//! column.

use ekbatan::db::DbErrorKind;
use ekbatan::domain::New;
use ekbatan::prelude::*;
use ekbatan::repository::{Direction, PageRequest, WriteError};
use support::TestDatabase;
use support::things::ThingState;

on_every_database! {
    only mysql and mariadb:
    an_enum_stores_only_what_it_declares,
    spaces_that_a_text_would_cut_are_refused,
    pages_by_long_texts_return_every_row_once_in_any_collation,
}

/// A row with an enum as a `String`, and with a text of 255 bytes and one of 65,535.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "letters", name = "Letter")]
struct Letter {
    id: Id<Letter>,
    kind: String,
    short: String,
    long: String,
    state: ThingState,
}

/// What the enum declares. The catalogue shows the last one as `?`.
const KINDS: [&str; 9] = ["x", "Y", "z", "ß", "it's", "a,'b", "b\\c", "n\n", "\u{1F980}"];

fn letter(kind: &str) -> Letter {
    let (id, state) = (Id::new(), ThingState::Active);
    Letter { id, kind: kind.to_owned(), short: String::new(), long: String::new(), state }
}

async fn create_letters(db: &TestDatabase) {
    let kinds = KINDS.map(|kind| format!("'{}'", kind.replace('\'', "''").replace('\\', "\\\\")));
    db.execute(&format!(
        "CREATE TABLE letters (id char(36) NOT NULL PRIMARY KEY, kind enum({}) NOT NULL, \
         short tinytext NOT NULL, `long` text NOT NULL, state varchar(24) NOT NULL, version bigint NOT NULL)",
        kinds.join(", ")
    ))
    .await;
}

fn assert_refused<T: std::fmt::Debug>(answer: Result<T, WriteError>, column: &str) {
    let error = answer.unwrap_err();
    let WriteError::Database(cause) = &error else { panic!("{error:?}") };
    assert_eq!(cause.kind(), DbErrorKind::ValueOutOfRange, "{error}");
    assert!(error.to_string().contains(&format!("column `{column}`")), "{error}");
}

async fn an_enum_stores_only_what_it_declares(db: &TestDatabase) {
    create_letters(db).await;
    let letters = db.databases.repository::<Letter>();
    let added = letters.add_all(KINDS.map(|kind| New::new(letter(kind), ()))).await.unwrap();
    for stored in &added {
        assert_eq!(letters.get(stored.id).await.unwrap(), *stored);
    }
    // The number of a value, what the collation takes for one, and what it cuts.
    for kind in ["2", "03", "0", "X", "y", "x ", "z\0", "ss", ""] {
        assert_refused(letters.add(New::new(letter(kind), ())).await, "kind");
        let changed = added[0].clone().apply(|letter| letter.kind = kind.to_owned());
        assert_refused(letters.update(changed).await, "kind");
    }
    let changed = added.into_iter().map(|stored| stored.apply(|letter| letter.kind = "Y".into()));
    for stored in letters.update_all(changed).await.unwrap() {
        assert_eq!(letters.get(stored.id).await.unwrap(), stored);
    }
}

async fn spaces_that_a_text_would_cut_are_refused(db: &TestDatabase) {
    create_letters(db).await;
    let letters = db.databases.repository::<Letter>();
    let text = |bytes: usize| format!("{} ", "x".repeat(bytes - 1));
    let short = |bytes| New::new(Letter { short: text(bytes), ..letter("x") }, ());
    let long = |bytes| New::new(Letter { long: text(bytes), ..letter("x") }, ());
    for fits in [short(255), long(65_535)] {
        let stored = letters.add(fits).await.unwrap();
        assert_eq!(letters.get(stored.id).await.unwrap(), stored);
    }
    assert_refused(letters.add(short(256)).await, "short");
    assert_refused(letters.add(long(65_536)).await, "long");
}

/// A server sorts by the first 1,024 bytes (`max_sort_length`) of a text, MySQL only in a collation that pads.
async fn pages_by_long_texts_return_every_row_once_in_any_collation(db: &TestDatabase) {
    for collation in ["utf8mb4_bin", "utf8mb4_general_ci"] {
        db.execute(&format!(
            "DROP TABLE IF EXISTS letters; CREATE TABLE letters (id char(36) NOT NULL PRIMARY KEY, \
             kind varchar(9) NOT NULL, short tinytext NOT NULL, `long` longtext NOT NULL, \
             state varchar(24) NOT NULL, version bigint NOT NULL) CHARACTER SET utf8mb4 COLLATE {collation}"
        ))
        .await;
        let again = db.open_again().await;
        let letters = again.repository::<Letter>();
        let added = (0..12).map(|n| {
            let long = format!("{}{}", "x".repeat(1_500), n * 5 % 12);
            New::new(Letter { long, ..letter("x") }, ())
        });
        let added = letters.add_all(added).await.unwrap();
        let mut ids: Vec<_> = added.iter().map(|letter| letter.id).collect();
        ids.sort();
        for direction in [Direction::Ascending, Direction::Descending] {
            let mut paged = Vec::new();
            let mut next = Some(PageRequest::first(2).order_by(Letter::LONG, direction));
            while let Some(request) = next.filter(|_| paged.len() <= ids.len()) {
                let page = letters.page(request).await.unwrap();
                paged.extend(page.rows.iter().map(|letter| letter.id));
                next = page.next;
            }
            paged.sort();
            assert_eq!(paged, ids, "{collation} {direction:?}");
        }
    }
}
