//! A row with two columns of every type; the second may be NULL.

use ekbatan::Field;
use ekbatan::chrono::NaiveDate;
use ekbatan::prelude::*;
use ekbatan::repository::Repository;
use support::{Dialect, Domain, TestDatabase};

use crate::draw::Draw;
use crate::edges;

/// The table of samples.
pub static SAMPLES: Domain = Domain {
    migrations,
    executor: |databases| {
        ActionExecutor::builder(databases, "com.example.properties").model::<Sample>()
    },
};

/// The repository of samples.
pub fn samples(db: &TestDatabase) -> Repository<Sample> {
    db.databases.repository()
}

#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "samples", name = "Sample")]
pub struct Sample {
    pub id: Id<Sample>,
    pub flag: bool,
    pub tiny: i16,
    pub small: i32,
    pub big: i64,
    pub ratio: f64,
    pub label: String,
    pub raw: Vec<u8>,
    pub owner: Uuid,
    pub price: Decimal,
    pub day: NaiveDate,
    pub at: DateTime<Utc>,
    pub doc: serde_json::Value,
    pub color: Color,
    pub opt_flag: Option<bool>,
    pub opt_tiny: Option<i16>,
    pub opt_small: Option<i32>,
    pub opt_big: Option<i64>,
    pub opt_ratio: Option<f64>,
    pub opt_label: Option<String>,
    pub opt_raw: Option<Vec<u8>>,
    pub opt_owner: Option<Uuid>,
    pub opt_price: Option<Decimal>,
    pub opt_day: Option<NaiveDate>,
    pub opt_at: Option<DateTime<Utc>>,
    pub opt_doc: Option<serde_json::Value>,
    pub opt_color: Option<Color>,
    pub state: SampleState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Field)]
pub enum Color {
    Red,
    Green,
}

#[derive(Debug, Clone, Copy, PartialEq, State)]
pub enum SampleState {
    Active,
    Deleted,
}

/// The columns: name, then the type in SQLite, in PostgreSQL (NOT NULL, and NULL), and in MySQL
/// and MariaDB.
const COLUMNS: [(&str, &str, [&str; 2], &str); 13] = [
    ("flag", "INTEGER", ["boolean", "boolean"], "boolean"),
    ("tiny", "INTEGER", ["smallint", "smallint"], "smallint"),
    ("small", "INTEGER", ["integer", "integer"], "integer"),
    ("big", "INTEGER", ["bigint", "bigint"], "bigint"),
    ("ratio", "REAL", ["double precision", "double precision"], "double"),
    ("label", "TEXT", ["text COLLATE \"C\"", "varchar COLLATE \"C\""], "longtext"),
    ("raw", "BLOB", ["bytea", "bytea"], "longblob"),
    ("owner", "TEXT", ["uuid", "uuid"], "{uuid}"),
    ("price", "TEXT", ["numeric", "numeric(57, 28)"], "decimal(57, 28)"),
    ("day", "TEXT", ["date", "date"], "date"),
    ("at", "TEXT", ["timestamptz", "timestamp"], "datetime(6)"),
    ("doc", "TEXT", ["jsonb", "json"], "json"),
    ("color", "TEXT", ["color", "color"], "enum('RED', 'GREEN')"),
];

fn migrations() -> Migrations {
    let create = |id: &str, of: &dyn Fn(usize) -> [&'static str; 2], end: &str| {
        let columns: String = COLUMNS
            .iter()
            .enumerate()
            .map(|(n, (name, ..))| {
                let [ty, optional] = of(n);
                format!("{name} {ty} NOT NULL, opt_{name} {optional}, ")
            })
            .collect();
        format!(
            "CREATE TABLE samples (id {id} NOT NULL PRIMARY KEY, {columns}\
             state varchar(24) NOT NULL, version bigint NOT NULL){end};"
        )
    };
    let mysql = |uuid: &str, collation: &str| {
        let end = format!(" DEFAULT CHARACTER SET utf8mb4 COLLATE {collation}");
        create(uuid, &|n| [COLUMNS[n].3; 2], &end).replace("{uuid}", uuid)
    };
    let char36 = "char(36) CHARACTER SET ascii COLLATE ascii_bin";
    let postgres = create("uuid", &|n| COLUMNS[n].2, "");
    Migrations::none()
        .script_for(
            ekbatan::db::Dialect::Sqlite,
            1,
            "samples",
            create("TEXT", &|n| [COLUMNS[n].1; 2], ""),
        )
        .script_for(
            ekbatan::db::Dialect::Postgres,
            1,
            "samples",
            format!("CREATE TYPE color AS ENUM ('RED', 'GREEN'); {postgres}"),
        )
        .script_for(ekbatan::db::Dialect::MySql, 1, "samples", mysql(char36, "utf8mb4_0900_bin"))
        .script_for(ekbatan::db::Dialect::MariaDb, 1, "samples", mysql("uuid", "utf8mb4_nopad_bin"))
}

/// A sample of ordinary values.
pub fn tame() -> Sample {
    Sample {
        id: Id::new(),
        flag: true,
        tiny: 1,
        small: 2,
        big: 3,
        ratio: 0.5,
        label: "a label".to_owned(),
        raw: vec![1, 2],
        owner: Uuid::from_u128(7),
        price: Decimal::new(1050, 2),
        day: NaiveDate::from_ymd_opt(2024, 2, 29).unwrap(),
        at: DateTime::from_timestamp_micros(1_720_000_000_123_457).unwrap(),
        doc: serde_json::json!({"a": [1, "b"]}),
        color: Color::Green,
        opt_flag: None,
        opt_tiny: None,
        opt_small: None,
        opt_big: None,
        opt_ratio: None,
        opt_label: None,
        opt_raw: None,
        opt_owner: None,
        opt_price: None,
        opt_day: None,
        opt_at: None,
        opt_doc: None,
        opt_color: None,
        state: SampleState::Active,
    }
}

/// A sample of which about one column in `times` has an edge value.
pub fn wild(draw: &mut Draw, times: u32) -> Sample {
    use proptest::prelude::any;
    let mut sample = tame();
    macro_rules! redraw {
        ($($field:ident $optional:ident: $strategy:expr;)*) => {$(
            if draw.once_in(times) {
                sample.$field = draw.one($strategy);
            }
            if draw.once_in(times) {
                sample.$optional = Some(draw.one($strategy));
            }
        )*};
    }
    redraw! {
        flag opt_flag: any::<bool>();
        tiny opt_tiny: any::<i16>();
        small opt_small: any::<i32>();
        big opt_big: edges::integer();
        ratio opt_ratio: edges::float();
        label opt_label: edges::text();
        raw opt_raw: edges::bytes();
        owner opt_owner: edges::uuid();
        price opt_price: edges::decimal();
        day opt_day: edges::date();
        at opt_at: edges::timestamp();
        doc opt_doc: edges::document();
        color opt_color: proptest::sample::select(vec![Color::Red, Color::Green]);
    }
    sample
}

/// The columns whose values the database cannot store unchanged.
pub fn refusable(dialect: Dialect, sample: &Sample) -> Vec<&'static str> {
    use chrono::Datelike;
    let year = |day: NaiveDate| match dialect {
        Dialect::Sqlite => !(0..=9999).contains(&day.year()),
        // Its dates start with Julian day 0.
        Dialect::Postgres => day < NaiveDate::from_ymd_opt(-4713, 11, 24).unwrap(),
        Dialect::MySql | Dialect::MariaDb => !(1000..=9999).contains(&day.year()),
    };
    let float = |float: f64| match dialect {
        Dialect::Postgres => false,
        Dialect::Sqlite => float.is_nan(),
        Dialect::MySql | Dialect::MariaDb => !float.is_finite(),
    };
    let text = |text: &String| dialect == Dialect::Postgres && text.contains('\0');
    // The uuid type of MariaDB refuses some values of unknown version and variant; the pattern was
    // found by experiment.
    let uuid = |uuid: Uuid| {
        let bytes = uuid.as_bytes();
        dialect == Dialect::MariaDb && bytes[6] >= 0x80 && (1..=0x80).contains(&bytes[8])
    };
    let document = |document: &serde_json::Value, binary: bool| {
        let deepest = match dialect {
            Dialect::MySql => 100,
            Dialect::MariaDb => 31,
            // The limit of serde_json.
            Dialect::Sqlite | Dialect::Postgres => 127,
        };
        depth(document) > deepest || (dialect == Dialect::Postgres && binary && has_nul(document))
    };
    let date = |at: DateTime<Utc>| {
        let folded = DateTime::from_timestamp_micros(at.timestamp_micros());
        folded.is_none_or(|at| year(at.date_naive()))
    };
    [
        ("ratio", float(sample.ratio)),
        ("opt_ratio", sample.opt_ratio.is_some_and(float)),
        ("label", text(&sample.label)),
        ("opt_label", sample.opt_label.as_ref().is_some_and(text)),
        ("day", year(sample.day)),
        ("opt_day", sample.opt_day.is_some_and(year)),
        ("at", date(sample.at)),
        ("opt_at", sample.opt_at.is_some_and(date)),
        ("owner", uuid(sample.owner)),
        ("opt_owner", sample.opt_owner.is_some_and(uuid)),
        ("doc", document(&sample.doc, true)),
        ("opt_doc", sample.opt_doc.as_ref().is_some_and(|doc| document(doc, false))),
    ]
    .into_iter()
    .filter_map(|(column, refused)| refused.then_some(column))
    .collect()
}

fn depth(document: &serde_json::Value) -> usize {
    match document {
        serde_json::Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        serde_json::Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn has_nul(document: &serde_json::Value) -> bool {
    match document {
        serde_json::Value::Array(items) => items.iter().any(has_nul),
        serde_json::Value::Object(map) => {
            map.iter().any(|(key, value)| key.contains('\0') || has_nul(value))
        }
        serde_json::Value::String(text) => text.contains('\0'),
        _ => false,
    }
}
