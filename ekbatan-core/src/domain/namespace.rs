//! The namespace of an application's actions.

/// The most characters, which are ASCII.
const LONGEST: usize = 255;

/// What is wrong with a namespace; `None` if nothing is.
pub(crate) fn namespace_problem(namespace: &str) -> Option<String> {
    if !is_dotted_identifier(namespace) {
        return Some(
            "is not a dotted identifier; write, for example, com.example.wallet (letters, digits and _; no part starts with a digit)".to_owned(),
        );
    }
    let length = namespace.len();
    (length > LONGEST).then(|| format!("has {length} characters; use at most {LONGEST}"))
}

fn is_dotted_identifier(namespace: &str) -> bool {
    namespace.split('.').all(|part| {
        let mut characters = part.chars();
        characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
            && characters.all(|character| character.is_ascii_alphanumeric() || character == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_dotted_identifiers() {
        for good in ["a", "com.example.wallet", "_x.y_1", "default", &"n".repeat(255)] {
            assert_eq!(namespace_problem(good), None, "{good}");
        }
        for bad in
            ["", " ", "my-service", "a..b", ".a", "a.", "1a", "com.example wallet", "com.example!"]
        {
            assert!(namespace_problem(bad).is_some_and(|why| why.contains("identifier")), "{bad}");
        }
        let long = namespace_problem(&"n".repeat(256));
        assert_eq!(long.as_deref(), Some("has 256 characters; use at most 255"));
    }
}
