//! Errors of `derive(State)`.

use ekbatan_macros::State;

#[derive(Clone, State)]
enum Variants {
    Frozen { since: u8 },
    Locked(u8),
    WaitingForTheSecondSignature,
    Open,
    #[state(name = "OPEN")]
    Opened,
    #[state(name = "")]
    Blank,
    #[state(rename = "X")]
    Renamed,
}

#[derive(Clone, State)]
enum Empty {}

#[derive(Clone, State)]
struct Open;

#[derive(State)]
enum Generic<const N: usize> {
    Open,
}

#[derive(Clone, State)]
#[state(name = "x")]
enum Attributed {
    Open,
}

#[derive(Clone, State)]
enum Lifecycle {
    Deleted,
    #[state(name = "deleted")]
    Gone,
    #[state(name = "Deleted  ")]
    Lost,
}

fn main() {}
