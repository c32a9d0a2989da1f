//! Where the randomness of a test comes from.

/// Chances by a seed that `EKBATAN_TEST_SEED` gives, or that is drawn; a test that fails
/// shows it.
pub fn random() -> fastrand::Rng {
    let given = std::env::var("EKBATAN_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("EKBATAN_TEST_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}
