//! Replaces `${NAME}` and `${NAME:default}` in the texts of files.
//!
//! The replacement is not scanned again, so the value of a variable may contain `${`. In a file,
//! `$${` stands for `${`.

/// The text with every `${..}` replaced, or the ones that could not be replaced.
pub(super) fn interpolate(
    text: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<String, Vec<Unresolved>> {
    let mut out = String::with_capacity(text.len());
    let mut unresolved = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if let Some(before) = rest[..at].strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        out.push_str(&rest[..at]);
        let Some(end) = rest[at..].find('}') else {
            unresolved.push(Unresolved::Open);
            rest = "";
            break;
        };
        let inside = &rest[at + 2..at + end];
        let (name, default) = match inside.split_once(':') {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        match variable(name).or_else(|| default.map(str::to_owned)) {
            _ if name.is_empty() => unresolved.push(Unresolved::Nameless),
            Some(value) => out.push_str(&value),
            None => unresolved.push(Unresolved::Missing(name.to_owned())),
        }
        rest = &rest[at + end + 1..];
    }
    out.push_str(rest);
    if unresolved.is_empty() { Ok(out) } else { Err(unresolved) }
}

/// A `${..}` that could not be replaced.
#[derive(Debug, PartialEq)]
pub(super) enum Unresolved {
    Missing(String),
    Open,
    Nameless,
}

impl Unresolved {
    pub(super) fn message(&self) -> String {
        match self {
            Self::Missing(name) => format!(
                "the environment has no variable `{name}`; set it, or give a default: `${{{name}:default}}`"
            ),
            Self::Open => "`${` has no closing `}`; write `$${` for a literal `${`".to_owned(),
            Self::Nameless => "`${}` names no variable; write `${NAME}`".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_env(text: &str) -> Result<String, Vec<Unresolved>> {
        interpolate(text, |name| match name {
            "HOST" => Some("db".to_owned()),
            "EMPTY" => Some(String::new()),
            "TRICKY" => Some("${HOST}".to_owned()),
            _ => None,
        })
    }

    #[test]
    fn names_are_replaced_by_the_values_of_variables() {
        assert_eq!(
            with_env("postgres://${HOST}:${PORT:5432}/shop").unwrap(),
            "postgres://db:5432/shop"
        );
        assert_eq!(with_env("${HOST:x}").unwrap(), "db");
        assert_eq!(with_env("${PORT:}").unwrap(), "");
        assert_eq!(with_env("[${EMPTY:full}]").unwrap(), "[]", "an empty variable is set");
        assert_eq!(with_env("${URL:jdbc:x}").unwrap(), "jdbc:x");
    }

    #[test]
    fn a_replacement_is_not_scanned_again() {
        assert_eq!(with_env("${TRICKY}").unwrap(), "${HOST}");
    }

    #[test]
    fn a_doubled_dollar_stands_for_itself() {
        assert_eq!(with_env("$${HOST} costs $5 ${HOST}").unwrap(), "${HOST} costs $5 db");
    }

    #[test]
    fn every_missing_name_is_reported() {
        assert_eq!(
            with_env("${A} ${HOST} ${B}").unwrap_err(),
            [Unresolved::Missing("A".into()), Unresolved::Missing("B".into())]
        );
        assert_eq!(with_env("${HOST").unwrap_err(), [Unresolved::Open]);
        assert_eq!(with_env("${}").unwrap_err(), [Unresolved::Nameless]);
        assert_eq!(with_env("${:x}").unwrap_err(), [Unresolved::Nameless]);
    }
}
