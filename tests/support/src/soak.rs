//! How long the tests run whose chance to find a defect grows with their number of rounds.
//!
//! `EKBATAN_SOAK=1` asks for the long runs; `scripts/soak` sets it. Without it such a test runs
//! a few rounds: enough to fail when the property that it checks is broken.

/// `soak` in a long run, `usual` otherwise.
pub fn rounds(usual: usize, soak: usize) -> usize {
    if is_long() { soak } else { usual }
}

fn is_long() -> bool {
    std::env::var("EKBATAN_SOAK").is_ok_and(|value| value == "1")
}
