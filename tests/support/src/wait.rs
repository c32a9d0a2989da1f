//! Waiting for what another task or process does.

use std::time::{Duration, Instant};

/// Waits until the condition holds. Panics after a minute, which only a broken machine needs.
pub async fn until(condition: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < deadline, "still waiting after a minute: {condition}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
