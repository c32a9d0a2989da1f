//! Draws values from strategies with a seed.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestRunner};

const SEED: &str = "EKBATAN_TEST_SEED";

fn seed() -> u64 {
    match std::env::var(SEED) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{SEED}={text} is no number")),
        Err(_) => 0x0ec8_a7a4,
    }
}

/// Draws the same values for the same seed. Prints the seed if the test fails.
pub struct Draw {
    runner: TestRunner,
    seed: u64,
}

impl Draw {
    pub fn new() -> Self {
        let seed = seed();
        Self { runner: runner(seed, 1), seed }
    }

    pub fn one<S: Strategy>(&mut self, of: S) -> S::Value {
        of.new_tree(&mut self.runner).unwrap().current()
    }

    /// Returns true with probability 1 in `times`.
    pub fn once_in(&mut self, times: u32) -> bool {
        self.one(0..times) == 0
    }

    /// Draws a number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.one(0..bound)
    }
}

impl Drop for Draw {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("drawn with {SEED}={0}; set it to repeat this, or to draw others", self.seed);
        }
    }
}

fn runner(seed: u64, cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        failure_persistence: None,
        rng_algorithm: RngAlgorithm::ChaCha,
        rng_seed: RngSeed::Fixed(seed),
        ..Config::default()
    })
}

/// Checks a property with `cases` values and shrinks a value that fails.
pub fn check<S: Strategy>(
    cases: u32,
    of: S,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let seed = seed();
    if let Err(failed) = runner(seed, cases).run(&of, property) {
        panic!("{failed}\ndrawn with {SEED}={seed}; set it to repeat this, or to draw others");
    }
}
