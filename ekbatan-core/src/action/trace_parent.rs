//! Checks a `traceparent` of the W3C, which callers pass on from a request's header.

/// The trace parent if it is one. A caller's header must not decide whether a call runs, so
/// anything else is dropped with a warning, as the W3C asks.
pub(super) fn accepted(text: String) -> Option<String> {
    if is_trace_parent(&text) {
        return Some(text);
    }
    let beginning: String = text.chars().take(64).collect();
    tracing::warn!(
        trace_parent = beginning,
        "the trace parent is dropped, because it is not a W3C traceparent, such as \
         00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    );
    None
}

/// `version-trace_id-parent_id-flags` in lower-case hexadecimal. A later version than 00 may go
/// on after the flags.
fn is_trace_parent(text: &str) -> bool {
    let mut parts = text.splitn(5, '-');
    let mut hex = |digits: usize| {
        parts.next().filter(|part| {
            part.len() == digits && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        })
    };
    let (Some(version), Some(trace), Some(parent), Some(_)) = (hex(2), hex(32), hex(16), hex(2))
    else {
        return false;
    };
    let known = |id: &str| id.bytes().any(|digit| digit != b'0');
    let ends = parts.next().is_none() || version != "00";
    version != "ff" && known(trace) && known(parent) && ends && text.len() <= 255
}

#[cfg(test)]
mod tests {
    use super::is_trace_parent;

    #[test]
    fn a_trace_parent_is_one_of_the_w3c() {
        for good in [
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes-later",
        ] {
            assert!(is_trace_parent(good), "{good}");
        }
        for bad in [
            "",
            "trace",
            "463ac35c9f6413ad48485a3953bb6124-a2fb4a1d1a96d312-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\0",
        ] {
            assert!(!is_trace_parent(bad), "{bad}");
        }
    }
}
