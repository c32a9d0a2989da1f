//! Replaces `${NAME}` and `${NAME:default}` in the texts of files.
//!
//! The value of a variable is not scanned again, so it may contain `${`. A default may contain
//! further `${..}`. In a file, `$${` stands for `${`.

/// Looks up the value of a variable. It is `None` if there is no such variable.
pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Result<Option<String>, NotUtf8>;

/// The value of a variable is not a text in UTF-8.
pub(super) struct NotUtf8;

/// The text with every `${..}` replaced, or the ones that could not be replaced.
pub(super) fn interpolate(text: &str, variable: Lookup<'_>) -> Result<String, Vec<Unresolved>> {
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
        let after = &rest[at + 2..];
        let Some(end) = closing(after) else {
            unresolved.push(Unresolved::Open);
            rest = "";
            break;
        };
        let inside = &after[..end];
        let (name, default) = match inside.split_once(':') {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        match (variable(name), default) {
            _ if name.is_empty() || name.contains("${") => unresolved.push(Unresolved::Nameless),
            (Err(NotUtf8), _) => unresolved.push(Unresolved::NotUtf8(name.to_owned())),
            (Ok(Some(value)), _) => out.push_str(&value),
            (Ok(None), Some(default)) => match interpolate(default, variable) {
                Ok(value) => out.push_str(&value),
                Err(within) => unresolved.extend(within),
            },
            (Ok(None), None) => unresolved.push(Unresolved::Missing(name.to_owned())),
        }
        rest = &after[end + 1..];
    }
    out.push_str(rest);
    if unresolved.is_empty() { Ok(out) } else { Err(unresolved) }
}

/// Where the `}` is that closes a `${`. Those of a `${..}` within are passed over.
fn closing(after: &str) -> Option<usize> {
    let mut within = 0;
    for (at, letter) in after.char_indices() {
        let before = &after[..at];
        match letter {
            '{' if before.ends_with('$') && !before.ends_with("$$") => within += 1,
            '}' if within == 0 => return Some(at),
            '}' => within -= 1,
            _ => {}
        }
    }
    None
}

/// A `${..}` that could not be replaced.
#[derive(Debug, PartialEq)]
pub(super) enum Unresolved {
    Missing(String),
    NotUtf8(String),
    Open,
    Nameless,
}

impl Unresolved {
    pub(super) fn message(&self) -> String {
        match self {
            Self::Missing(name) => format!(
                "the environment has no variable `{name}`; set it, or give a default: `${{{name}:default}}`"
            ),
            Self::NotUtf8(name) => format!(
                "the variable `{name}` of the environment is not a text in UTF-8; set it to one"
            ),
            Self::Open => "`${` has no closing `}`; write `$${` for a literal `${`".to_owned(),
            Self::Nameless => {
                "a `${..}` does not begin with the name of a variable; write `${NAME}`".to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_env(text: &str) -> Result<String, Vec<Unresolved>> {
        interpolate(text, &|name| match name {
            "HOST" => Ok(Some("db".to_owned())),
            "EMPTY" => Ok(Some(String::new())),
            "TRICKY" => Ok(Some("${HOST}".to_owned())),
            "LATIN" => Err(NotUtf8),
            _ => Ok(None),
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
    fn a_default_may_contain_further_names() {
        assert_eq!(with_env("${HOST:${PORT:}}").unwrap(), "db");
        assert_eq!(with_env("${PORT:${HOST:x}}!").unwrap(), "db!");
        assert_eq!(with_env("${PORT:a${NONE:b${HOST}}}").unwrap(), "abdb");
        assert_eq!(with_env("${PORT:$${HOST}}").unwrap(), "${HOST}", "as before");
        assert_eq!(with_env("${PORT:${TRICKY}}").unwrap(), "${HOST}", "a value is not scanned");
        assert_eq!(with_env("${HOST:${NONE}}").unwrap(), "db", "the default is not used");
        assert_eq!(with_env("${PORT:${NONE}}").unwrap_err(), [Unresolved::Missing("NONE".into())]);
        assert_eq!(with_env("${PORT:${HOST}").unwrap_err(), [Unresolved::Open]);
        assert_eq!(with_env("${${HOST}}").unwrap_err(), [Unresolved::Nameless]);
    }

    #[test]
    fn a_variable_that_is_not_utf_8_is_not_replaced_by_a_default() {
        for text in ["${LATIN}", "${LATIN:x}", "${PORT:${LATIN:x}}"] {
            assert_eq!(with_env(text).unwrap_err(), [Unresolved::NotUtf8("LATIN".into())]);
        }
        assert_eq!(with_env("${HOST:${LATIN}}").unwrap(), "db", "the default is not used");
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
