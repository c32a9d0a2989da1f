//! Strategies for the values of every column type: edge values and arbitrary ones.

use ekbatan::chrono::NaiveDate;
use ekbatan::prelude::*;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

pub fn integer() -> impl Strategy<Value = i64> {
    prop_oneof![
        select(vec![0, -1, 1, i64::MIN, i64::MIN + 1, i64::MAX, (1 << 53) + 1, -(1 << 53) - 1]),
        any::<i64>(),
    ]
}

pub fn float() -> impl Strategy<Value = f64> {
    prop_oneof![
        3 => select(vec![
            0.0,
            -0.0,
            1.0,
            0.1 + 0.2,
            1e15,
            1e16,
            9_007_199_254_740_993.0,
            f64::MAX,
            f64::MIN,
            f64::MIN_POSITIVE,
            f64::EPSILON,
            5e-324,
            -2.225_073_858_507_201e-308,
            2.225_073_858_507_201_4e-308,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
        ]),
        3 => any::<u64>().prop_map(f64::from_bits),
        2 => -1e6..1e6_f64,
    ]
}

pub fn text() -> impl Strategy<Value = String> {
    let edges = [
        "",
        " ",
        "a ",
        "a",
        "A",
        "a\t ",
        "'",
        "''",
        "\\",
        "\\'",
        "'; DROP TABLE samples; --",
        "\"",
        "`",
        "%",
        "_",
        "$1",
        "$1b",
        "?",
        ":a",
        "@a",
        "{}",
        "{0}",
        "{eventlog}",
        "NULL",
        "null",
        "\\u0000",
        "\\ud800",
        "\u{0}",
        "a\u{0}b",
        "\u{1}\u{1b}\u{7f}",
        "\r\n",
        "\u{1F980}",
        "e\u{301}",
        "\u{e9}",
        "\u{fffd}",
        "\u{feff}",
        "\u{ffff}",
        "\u{10ffff}",
        "\u{d7ff}\u{e000}",
        "\u{202e}abc",
        "0x41",
        "007",
        "10.50",
        "1e5",
        "true",
        "2026-01-31",
        "[1,2]",
    ];
    let nasty = vec!['\'', '"', '\\', '`', '$', '1', '?', '%', '{', '}', ' ', '\u{1F980}', 'ä'];
    prop_oneof![
        8 => select(edges.to_vec()).prop_map(str::to_owned),
        4 => "\\PC{0,20}",
        3 => prop::collection::vec(select(nasty), 0..12)
            .prop_map(|chars| chars.into_iter().collect()),
        2 => prop::collection::vec(any::<char>(), 0..12)
            .prop_map(|chars| chars.into_iter().collect()),
        1 => ("[a-c'\\\\]", 1_020_usize..1_030, "[a-c]?")
            .prop_map(|(unit, times, end)| unit.repeat(times) + &end),
        1 => select(vec!["x", "'", "\u{1F980}"]).prop_map(|unit| unit.repeat(65_536 / unit.len())),
    ]
}

pub fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(Vec::new()),
        Just(vec![0]),
        Just(vec![0, 0, b' ']),
        Just(b"\\x41'\"".to_vec()),
        Just((0..=255).collect()),
        Just(vec![255; 65_536]),
        prop::collection::vec(any::<u8>(), 0..40),
        prop::collection::vec(any::<u8>(), 0..40),
    ]
}

pub fn uuid() -> impl Strategy<Value = Uuid> {
    prop_oneof![Just(0), Just(u128::MAX), any::<u128>()].prop_map(Uuid::from_u128)
}

pub fn decimal() -> impl Strategy<Value = Decimal> {
    let edges = [
        "0",
        "-0",
        "0.00",
        "0.0000000000000000000000000000",
        "1.50",
        "1.5",
        "-1.5",
        "100",
        "0.0000000000000000000000000001",
        "-0.0000000000000000000000000001",
        "79228162514264337593543950335",
        "-79228162514264337593543950335",
        "7.9228162514264337593543950335",
        "7922816251426433759354395033.5",
        "1.0000000000000000000000000000",
        "10000000000000000000000000000",
        "9999.9999",
        "0.00010001",
    ];
    prop_oneof![
        select(edges.to_vec()).prop_map(|text| text.parse().unwrap()),
        (any::<i128>(), 0_u32..=28)
            .prop_map(|(digits, scale)| Decimal::from_i128_with_scale(digits >> 32, scale)),
        (-100_000_i64..100_000, 0_u32..=28).prop_map(|(digits, scale)| Decimal::new(digits, scale)),
    ]
}

pub fn date() -> impl Strategy<Value = NaiveDate> {
    let years =
        vec![-262_143, -4_714, -4_713, -1, 0, 1, 999, 1_000, 1_969, 1_970, 9_999, 10_000, 262_142];
    prop_oneof![
        2 => (select(years), any::<bool>()).prop_map(|(year, first): (i32, bool)| {
            let (month, day) = if first { (1, 1) } else { (12, 31) };
            NaiveDate::from_ymd_opt(year, month, day).unwrap()
        }),
        1 => Just(NaiveDate::from_ymd_opt(2024, 2, 29).unwrap()),
        3 => (365_250..3_652_059).prop_map(|day| NaiveDate::from_num_days_from_ce_opt(day).unwrap()),
        1 => Just(NaiveDate::MIN),
        1 => Just(NaiveDate::MAX),
    ]
}

pub fn timestamp() -> impl Strategy<Value = DateTime<Utc>> {
    let nanos = prop_oneof![
        Just(0),
        Just(1),
        Just(999),
        Just(999_999_999),
        Just(1_999_999_999),
        Just(1_000_000_000),
        0_u32..1_000_000_000,
    ];
    let leap = Just(1_483_228_799_i64);
    let second = prop_oneof![
        select(vec![0_i64, -1, -62_135_596_800, 253_402_300_799, 253_402_300_800, -30_610_224_000]),
        leap,
        -30_000_000_000_i64..250_000_000_000,
        0_i64..4_000_000_000,
    ];
    prop_oneof![
        12 => (second, nanos).prop_filter_map("chrono's leap seconds end a minute", |(second, nanos)| {
            DateTime::from_timestamp(second, nanos)
        }),
        // Each date with a time.
        3 => (date(), 0_u32..86_400).prop_filter_map("beyond chrono's range", |(day, second)| {
            Some(day.and_hms_opt(second / 3_600, second / 60 % 60, second % 60)?.and_utc())
        }),
        1 => Just(DateTime::<Utc>::MIN_UTC),
        1 => Just(DateTime::<Utc>::MAX_UTC),
    ]
}

/// Arrays nested to a depth.
fn nested(depth: usize) -> serde_json::Value {
    (0..depth).fold(json!(1), |inner, _| json!([inner]))
}

pub fn document() -> impl Strategy<Value = serde_json::Value> {
    let parsed = [
        "null",
        "true",
        "\"\"",
        "[]",
        "{}",
        r#"{"a": 1, "a": 2}"#,
        r#"{"b": 1, "a": 2, "": 3}"#,
        r#""\u0000""#,
        r#"{"\u0000": 1}"#,
        r#""\\u0000""#,
        r#""\ud83e\udd80 \u00e9 \/""#,
        r#""'\"\\`$1?%{}""#,
        "18446744073709551615",
        "-9223372036854775808",
        "123456789012345678901234567890",
        "1e16",
        "1.0",
        "-0.0",
        "1.7976931348623157e308",
        "5e-324",
        "0.1",
        "2.2250738585072011e-308",
        "[[[1.5, [null]], {\"a\": {\"b\": []}}]]",
    ];
    let number = float().prop_filter_map("JSON has none such", |float| {
        serde_json::Number::from_f64(float).map(serde_json::Value::Number)
    });
    let leaf = prop_oneof![
        integer().prop_map(|integer| json!(integer)),
        any::<u64>().prop_map(|integer| json!(integer)),
        number,
        "\\PC{0,10}".prop_map(|text| json!(text)),
        prop::collection::vec(any::<char>(), 0..6).prop_map(|text| json!(String::from_iter(text))),
    ];
    let tree = leaf.prop_recursive(5, 30, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::btree_map("[a-z'\"\\\\ ]{0,4}", inner, 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    });
    prop_oneof![
        4 => select(parsed.to_vec()).prop_map(|text| serde_json::from_str(text).unwrap()),
        6 => tree,
        1 => select(vec![31, 32, 33, 99, 100, 101, 126, 127, 128, 129, 500]).prop_map(nested),
        1 => Just(json!("x'\\\"".repeat(20_000))),
    ]
}
