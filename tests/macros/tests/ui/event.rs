//! Errors of `derive(Event)`.

use ekbatan_macros::Event;

#[derive(Clone, serde::Serialize, Event)]
enum Names {
    Nameless,
    #[event(version = 2)]
    OnlyVersion,
    #[event(name = "Same")]
    First,
    #[event(name = "Same", version = 2)]
    Second,
    #[event(name = "  ")]
    Blank,
    #[event(name = "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345")]
    Long,
    #[event(name = "Zero", version = 0)]
    Zero,
    #[event(name = "Text", version = "1")]
    Text,
    #[event(name = "Topic", topic = "x")]
    Topic,
    #[event("Literal")]
    Literal,
}

#[derive(Clone, serde::Serialize, Event)]
enum Lists {
    #[event(name = "Pair")]
    Pair(u8, u8),
    #[event(name = "Empty")]
    Empty(),
}

#[derive(Clone, serde::Serialize, Event)]
#[serde(tag = "type", content = "data")]
enum Tagged {
    #[event(name = "One")]
    One,
    #[event(name = "Other")]
    #[serde(untagged)]
    Other { amount: u8 },
}

#[derive(Clone, Event)]
enum Empty {}

#[derive(Clone, serde::Serialize, Event)]
struct Opened {
    owner: String,
}

#[derive(Clone, serde::Serialize, Event)]
#[event(name = "x")]
enum Attributed {
    #[event(name = "Happened")]
    Happened,
}

fn main() {}
