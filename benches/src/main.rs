//! Measurements of ekbatan beside hand-written SQL.
fn main() {}
