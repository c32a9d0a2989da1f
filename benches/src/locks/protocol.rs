//! What a child process and its parent write to each other.

use super::timeline::KeyHold;

/// A child writes this when it is ready.
pub const READY: &str = "ready";
/// The parent writes this to start the measurement.
pub const GO: &str = "go";

/// The port that follows `word` in `line`.
pub fn port_after(line: &str, word: &str) -> Option<u16> {
    line.trim().strip_prefix(word)?.trim().parse().ok()
}

/// Encodes holds as four eight-byte numbers each.
pub fn write(holds: &[KeyHold]) -> Vec<u8> {
    let times = |hold: &KeyHold| [hold.asked, hold.acquired, hold.releasing, hold.done];
    holds.iter().flat_map(times).flat_map(u64::to_le_bytes).collect()
}

pub fn read(process: u64, written: &[u8]) -> impl Iterator<Item = KeyHold> {
    let (numbers, _) = written.as_chunks::<8>();
    let (holds, _) = numbers.as_chunks::<4>();
    holds.iter().map(move |times| {
        let [asked, acquired, releasing, done] = times.map(u64::from_le_bytes);
        KeyHold { process, asked, acquired, releasing, done }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_survive_encoding() {
        let hold = KeyHold { process: 3, asked: 1, acquired: 2, releasing: 3, done: u64::MAX };
        let read: Vec<KeyHold> = read(3, &write(&[hold, hold])).collect();
        assert_eq!(read, [hold, hold]);
    }
}
