//! What joins the terms of a condition.

/// `AND` or `OR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Connective {
    And,
    Or,
}

impl Connective {
    /// The condition of these terms. They are joined in pairs: databases refuse what is nested
    /// deeply, and to SQLite a chain of a thousand terms is that, too.
    pub(super) fn join(self, mut terms: Vec<String>) -> String {
        let word = match self {
            Connective::And => " AND ",
            Connective::Or => " OR ",
        };
        while terms.len() > 1 {
            let pairs = terms.chunks(2).map(|pair| match pair {
                [one] => one.clone(),
                pair => format!("({})", pair.join(word)),
            });
            terms = pairs.collect();
        }
        terms.pop().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_terms_are_not_nested_deeply() {
        let terms = |count: usize| (0..count).map(|n| n.to_string()).collect();
        assert_eq!(Connective::Or.join(terms(1)), "0");
        assert_eq!(Connective::And.join(terms(3)), "((0 AND 1) AND 2)");
        let many = Connective::Or.join(terms(1_024));
        assert_eq!(many.matches(" OR ").count(), 1_023);
        assert!(many.starts_with(&format!("{}0 OR 1)", "(".repeat(10))), "{}", &many[..30]);
    }
}
