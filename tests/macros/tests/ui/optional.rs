//! Columns that have two kinds of NULL.

use ekbatan_core::domain::Id;
use ekbatan_macros::{Entity, Field, State};

#[derive(Debug, Clone, State)]
enum OnlyState {
    Open,
}

#[derive(Clone, Entity)]
#[entity(table = "twice")]
struct Twice {
    id: Id<Twice>,
    note: Option<Option<String>>,
    state: OnlyState,
}

#[derive(Debug, Clone, Field)]
struct Note(Option<String>);

#[derive(Clone, Entity)]
#[entity(table = "wrapped")]
struct Wrapped {
    id: Id<Wrapped>,
    note: Option<Note>,
    state: OnlyState,
}

fn main() {}
