//! The names of rows. All rows of a namespace begin with its name and a `/`.

use ekbatan_lock::LockError;

use crate::address::refused;

/// The longest name of a row.
const LONGEST: usize = 32_767;

#[derive(Debug, Clone)]
pub(crate) struct RowNames {
    namespace: String,
}

impl RowNames {
    pub(crate) fn within(namespace: &str) -> Result<Self, LockError> {
        if namespace.trim().is_empty() || namespace.contains('/') || namespace.len() > 255 {
            return Err(refused(&format!(
                "the namespace `{namespace}` is blank, longer than 255 bytes, or contains `/`, \
                 which ends it in the names of rows; name it after the application, such as \
                 `ekbatan-lock`"
            )));
        }
        Ok(Self { namespace: namespace.to_owned() })
    }

    /// The row of no lock, on which the start tries what it relies on.
    pub(crate) fn trial(&self) -> Vec<u8> {
        self.namespace.clone().into_bytes()
    }

    /// The row of a lock; `None` if its name is too long.
    pub(crate) fn row(&self, key: &str) -> Option<Vec<u8>> {
        let row = format!("{}/{key}", self.namespace).into_bytes();
        (row.len() <= LONGEST).then_some(row)
    }

    /// The key of a row of this namespace.
    pub(crate) fn key(&self, row: &[u8]) -> Option<String> {
        let row = std::str::from_utf8(row).ok()?;
        Some(row.strip_prefix(&self.namespace)?.strip_prefix('/')?.to_owned())
    }

    /// The rows of all locks whose keys begin like this: the first one, and the first behind them.
    pub(crate) fn range(&self, prefix: &str) -> (Vec<u8>, Vec<u8>) {
        let first = format!("{}/{prefix}", self.namespace).into_bytes();
        let mut end = first.clone();
        // The last byte of a text is never 255.
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        (first, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_names_its_key() {
        let names = RowNames::within("app").unwrap();
        for key in ["DC#eu#a", "a/b", "", "é", "/"] {
            let row = names.row(key).unwrap();
            assert_eq!(names.key(&row).as_deref(), Some(key));
            let other = RowNames::within("ap").unwrap();
            assert_eq!(other.key(&row), None);
            let beginning: String = key.chars().take(1).collect();
            let (first, end) = names.range(&beginning);
            assert!(first <= row && row < end, "{key}");
        }
        assert_eq!(names.key(&names.trial()), None);
        assert_eq!(names.row(&"x".repeat(LONGEST)), None);
    }

    #[test]
    fn a_namespace_without_a_name_is_refused() {
        for namespace in ["", " ", "a/b", "/a", &"x".repeat(256)] {
            let error = RowNames::within(namespace).unwrap_err();
            assert!(error.to_string().contains("namespace"), "{error}");
        }
    }
}
