//! The source of a test's randomness.

/// A generator with the seed in `EKBATAN_TEST_SEED`, or with a random one. The seed is printed, so
/// that the choices of a failed run can be repeated.
pub fn random() -> fastrand::Rng {
    let given = std::env::var("EKBATAN_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("EKBATAN_TEST_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}
