//! The choice of the next wallet: uniform, or skewed.
//!
//! Invariants: the wallet of rank `k` is drawn in proportion to `1 / k^skew` (Zipf). A
//! skew of 0 is uniform, and about 1 is typical for shops and web sites.

/// Draws wallets by rank.
pub struct Skew {
    /// The share of draws up to each rank.
    shares: Vec<f64>,
}

impl Skew {
    pub fn new(wallets: u32, skew: f64) -> Self {
        let mut sum = 0.0;
        let mut shares: Vec<f64> = (1..=wallets)
            .map(|rank| {
                sum += f64::from(rank).powf(-skew);
                sum
            })
            .collect();
        shares.iter_mut().for_each(|share| *share /= sum);
        Self { shares }
    }

    pub fn draw(&self, random: &mut fastrand::Rng) -> u32 {
        let drawn = random.f64();
        let rank = self.shares.partition_point(|&share| share <= drawn);
        rank.min(self.shares.len() - 1) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(wallets: u32, skew: f64) -> Vec<u32> {
        let (skew, mut random) = (Skew::new(wallets, skew), fastrand::Rng::with_seed(7));
        let mut counts = vec![0; wallets as usize];
        (0..100_000).for_each(|_| counts[skew.draw(&mut random) as usize] += 1);
        counts
    }

    #[test]
    fn without_skew_all_are_alike() {
        assert!(drawn(10, 0.0).iter().all(|count| (9_000..11_000).contains(count)));
        assert_eq!(drawn(1, 0.0), [100_000]);
    }

    #[test]
    fn with_skew_one_the_second_comes_half_as_often() {
        let counts = drawn(1_000, 1.0);
        let ratio = f64::from(counts[0]) / f64::from(counts[1]);
        assert!((1.8..2.2).contains(&ratio), "{ratio}");
    }
}
