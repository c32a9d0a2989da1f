//! Properties of a valid JSON text, found without parsing it if possible.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde::ser::Error as _;

/// The JSON of a value. Fails if it is nested too deeply to be read back, or has a null where the
/// type has none. serde_json writes NaN and infinity as null.
pub fn checked_json<T: Serialize + DeserializeOwned>(
    value: &T,
) -> Result<String, serde_json::Error> {
    let text = serde_json::to_string(value)?;
    check_nulls_and_depth::<T>(&text)?;
    Ok(text)
}

/// Fails if a text that serde_json wrote is nested too deeply to be read back, or has a null where the
/// type has none.
pub(crate) fn check_nulls_and_depth<T: DeserializeOwned>(
    text: &str,
) -> Result<(), serde_json::Error> {
    check_depth(text).map_err(serde_json::Error::custom)?;
    if !text.contains("null") {
        return Ok(());
    }
    serde_json::from_str::<T>(text).map(drop).map_err(|error| {
        serde_json::Error::custom(format!(
            "it could not be read back: {error}; a NaN, for example, is a null in JSON"
        ))
    })
}

/// The nesting limit of serde_json.
const MAX_DEPTH: usize = 127;

/// Fails with the reason if a text is nested too deeply to be read back.
pub(super) fn check_depth(text: &str) -> Result<(), String> {
    let depth = depth(text);
    if depth > MAX_DEPTH {
        return Err(format!(
            "its JSON is nested {depth} deep; at most {MAX_DEPTH} levels can be read back"
        ));
    }
    Ok(())
}

/// The nesting depth of arrays and objects.
pub(crate) fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    each(text, |byte| match byte {
        b'[' | b'{' => {
            depth += 1;
            deepest = deepest.max(depth);
        }
        b']' | b'}' => depth = depth.saturating_sub(1),
        _ => {}
    });
    deepest
}

/// Where a string contains the character 0, which JSON always escapes.
#[cfg(feature = "postgres")]
pub(crate) fn find_nul(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == b'\\') {
        at += found;
        if bytes[at..].starts_with(b"\\u0000") {
            return Some(at);
        }
        // Skip the escaped character: it may be a backslash.
        at = (at + 2).min(bytes.len());
    }
    None
}

/// Calls `seen` with every byte outside of strings.
fn each(text: &str, mut seen: impl FnMut(u8)) {
    let (mut quoted, mut escaped) = (false, false);
    for byte in text.bytes() {
        match (quoted, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (true, b'"') => quoted = false,
            (true, _) => {}
            (false, b'"') => quoted = true,
            (false, byte) => seen(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_in_strings_are_no_depth() {
        assert_eq!(depth("1"), 0);
        assert_eq!(depth(r#"{"a": [1, {}], "b": []}"#), 3);
        assert_eq!(depth(r#"["[[[\"[[", "\\", [1]]"#), 2);
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn an_escaped_backslash_escapes_nothing() {
        assert_eq!(find_nul(r#""a\u0000""#), Some(2));
        assert_eq!(find_nul(r#""\\\u0000""#), Some(3));
        for none in [r#""a\\u0000""#, r#""\u0001\\""#, "1"] {
            assert_eq!(find_nul(none), None, "{none}");
        }
    }
}
