//! Ids that contain their shard, compared with a second implementation of the layout.

use std::sync::{Arc, Mutex};

use ekbatan::clock::Clock;
use ekbatan::domain::{IdGenerator, ShardIdentifier};
use ekbatan::prelude::*;
use proptest::prelude::*;

use crate::draw::check;

struct Row;

struct Set(Mutex<i64>);

impl Clock for Set {
    fn now(&self) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(*self.0.lock().unwrap()).unwrap()
    }
}

/// The parts of the layout, read from the text form instead of the number.
#[derive(Debug, PartialEq)]
struct Parts {
    milliseconds: i64,
    version: u8,
    counter: u16,
    variant: u8,
    group: u8,
    member: u8,
}

fn parts(text: &str) -> Parts {
    let bits: String = text
        .chars()
        .filter(|c| *c != '-')
        .map(|digit| format!("{:04b}", digit.to_digit(16).unwrap()))
        .collect();
    assert_eq!(bits.len(), 128);
    let cut = |from: usize, length: usize| u64::from_str_radix(&bits[from..][..length], 2).unwrap();
    Parts {
        milliseconds: cut(0, 48) as i64,
        version: cut(48, 4) as u8,
        counter: cut(52, 12) as u16,
        variant: cut(64, 2) as u8,
        group: cut(66, 8) as u8,
        member: cut(74, 6) as u8,
    }
}

fn shard() -> impl Strategy<Value = ShardIdentifier> {
    (0_u32..256, 0_u32..64).prop_map(|(group, member)| ShardIdentifier::new(group, member).unwrap())
}

/// The last millisecond of 48 bits, minus the milliseconds that a generator may borrow here.
const LAST: i64 = (1 << 48) - 1_000;

#[test]
fn a_generated_id_contains_its_shard_and_instant() {
    let instants = prop_oneof![
        Just(0),
        Just(1),
        Just(LAST),
        -1_000_000_i64..0,
        0..LAST,
        1_600_000_000_000..1_900_000_000_000_i64,
    ];
    check(500, prop::collection::vec((instants, shard()), 1..40), |steps| {
        let clock = Arc::new(Set(Mutex::new(0)));
        let ids = IdGenerator::new(clock.clone());
        let mut latest = 0;
        let mut before: Option<ShardedId<Row>> = None;
        for (now, shard) in steps {
            *clock.0.lock().unwrap() = now;
            latest = latest.max(now);
            let id: ShardedId<Row> = ids.generate_on(shard);
            let parts = parts(&id.to_string());
            // A millisecond has room for 2,000 ids; here there are fewer.
            prop_assert_eq!(parts.milliseconds, latest);
            prop_assert_eq!((parts.version, parts.variant), (7, 0b10));
            prop_assert_eq!((parts.group, parts.member), (shard.group(), shard.member()));
            prop_assert_eq!(id.shard(), Some(shard));
            prop_assert_eq!(id.instant(), DateTime::from_timestamp_millis(latest));
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            let json = serde_json::to_string(&id).unwrap();
            prop_assert_eq!(serde_json::from_str::<ShardedId<Row>>(&json).unwrap(), id);
            prop_assert!(before.is_none_or(|before| before < id));
            before = Some(id);
        }
        Ok(())
    });
}

#[test]
fn ids_of_all_shards_are_ordered_by_time() {
    check(500, (0..LAST, 0..LAST, shard(), shard()), |(a, b, one, other)| {
        let draw = |at: i64, shard| -> ShardedId<Row> {
            IdGenerator::new(Arc::new(Set(Mutex::new(at)))).generate_on(shard)
        };
        let (one, other) = (draw(a, one), draw(b, other));
        if a != b {
            prop_assert_eq!(one.cmp(&other), a.cmp(&b));
            prop_assert_eq!(one.to_string().cmp(&other.to_string()), a.cmp(&b));
        }
        Ok(())
    });
}

#[test]
fn any_128_bits_parse_as_an_id() {
    let bits = prop_oneof![
        any::<u128>(),
        // Most of these have another version.
        any::<u128>().prop_map(|bits| bits & !(0xF << 76 | 0b11 << 62) | 0x7 << 76 | 0b10 << 62),
    ];
    check(2_000, bits, |bits| {
        let id: ShardedId<Row> = ShardedId::from_uuid(Uuid::from_u128(bits));
        let parts = parts(&id.to_string());
        let carries = parts.version == 7 && parts.variant == 0b10;
        let shard = ShardIdentifier::new(parts.group.into(), parts.member.into()).unwrap();
        prop_assert_eq!(id.shard(), carries.then_some(shard));
        prop_assert_eq!(
            id.instant(),
            DateTime::from_timestamp_millis(parts.milliseconds).filter(|_| carries)
        );
        prop_assert_eq!(id.to_string().parse(), Ok(id));
        let json = serde_json::to_value(id).unwrap();
        prop_assert_eq!(serde_json::from_value::<ShardedId<Row>>(json).unwrap(), id);
        Ok(())
    });
}

#[test]
fn parsing_accepts_or_refuses_any_text() {
    let almost = "[0-9a-fA-F{}-]{0,40}|urn:uuid:[0-9a-f-]{30,40}|[0-9a-f]{32}";
    check(3_000, prop_oneof![almost, "\\PC{0,50}", any::<String>()], |text| {
        let parsed = text.parse::<ShardedId<Row>>();
        let read = serde_json::from_value::<ShardedId<Row>>(text.clone().into());
        prop_assert_eq!(parsed.is_ok(), read.is_ok());
        if let Ok(id) = parsed {
            let _ = (id.shard(), id.instant());
            prop_assert_eq!(id.to_string().parse(), Ok(id));
        }
        Ok(())
    });
}
