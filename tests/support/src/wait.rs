//! Waiting for what another task or process does.

use std::time::{Duration, Instant};

/// Waits until the condition holds. Panics after two minutes, which only a broken machine needs.
pub async fn until(condition: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds().await {
        assert!(Instant::now() < deadline, "still waiting after two minutes: {condition}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
