//! The values that an enum column declares.

/// Whether an enum of this type, as `enum('a','b')`, declares the value byte by byte.
///
/// The server also takes the number of a value, and what the collation of the column takes for one,
/// and stores the value that is meant.
pub(super) fn declares(db_type: &str, value: &str) -> bool {
    let wanted = literal(value);
    let mut list = db_type.strip_prefix("enum(").unwrap_or_default();
    while let Some(length) = literal_length(list) {
        let (declared, rest) = list.split_at(length);
        if declared == wanted {
            return true;
        }
        list = rest.strip_prefix(',').unwrap_or_default();
    }
    false
}

/// The value as the catalogue writes it.
fn literal(value: &str) -> String {
    let mut literal = String::with_capacity(value.len() + 2);
    literal.push('\'');
    for character in value.chars() {
        match character {
            '\'' => literal.push_str("''"),
            '\\' => literal.push_str("\\\\"),
            '\n' => literal.push_str("\\n"),
            '\r' => literal.push_str("\\r"),
            '\0' => literal.push_str("\\0"),
            // The catalogue stores no more than three bytes of a character.
            '\u{10000}'.. => literal.push('?'),
            other => literal.push(other),
        }
    }
    literal.push('\'');
    literal
}

/// The length of the literal with which a list begins. Two quotes within a literal stand for one.
fn literal_length(list: &str) -> Option<usize> {
    let mut at = list.starts_with('\'').then_some(1)?;
    loop {
        at += list[at..].find('\'')? + 1;
        if !list[at..].starts_with('\'') {
            return Some(at);
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_declared_is_a_value() {
        // As both servers answer.
        let db_type = r"enum('x','Y','it''s','b\\c','n\nl','','a,','d'',''e','?','ß')";
        for value in ["x", "Y", "it's", "b\\c", "n\nl", "", "a,", "d','e", "\u{1F980}", "ß"] {
            assert!(declares(db_type, value), "{value:?}");
        }
        for value in ["2", "X", "y", "x ", "x\0", "x','Y", "d", "b", "n\\nl", "ss", ","] {
            assert!(!declares(db_type, value), "{value:?}");
        }
    }
}
