//! Waiting for what another task or process does.

use std::time::{Duration, Instant};

use ekbatan::prelude::{Databases, EkbatanConfig};

/// Waits until the condition holds. Panics after two minutes, which only a broken machine needs.
pub async fn until(condition: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let began = Instant::now();
        if holds().await {
            return;
        }
        assert!(Instant::now() < deadline, "still waiting after two minutes: {condition}");
        // A look takes the processor from what it waits for.
        let pause = 4 * began.elapsed();
        tokio::time::sleep(pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE)).await;
    }
}

/// Connects with a short `connection_timeout`, which a slow machine may exceed at first.
pub async fn connected(config: &EkbatanConfig) -> Databases {
    let mut databases = None;
    let connects = async || {
        databases = Databases::connect(config).await.ok();
        databases.is_some()
    };
    until("the database is connected to", connects).await;
    databases.unwrap()
}

const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
