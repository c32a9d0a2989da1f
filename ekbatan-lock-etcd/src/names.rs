//! The names of keys at the server.
//!
//! Invariant: the places of one lock are all that lies in its folder, and no folder lies within
//! another one.

use std::fmt::Write;

use ekbatan_lock::LockError;
use uuid::Uuid;

/// The names within one namespace.
#[derive(Debug, Clone)]
pub(crate) struct EtcdNames {
    namespace: String,
}

/// A folder, as the half-open range of its keys.
pub(crate) struct Folder {
    pub(crate) first: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

impl EtcdNames {
    pub(crate) fn within(namespace: &str) -> Result<Self, LockError> {
        if namespace.trim().is_empty() || namespace.contains('/') {
            let reason = format!(
                "the namespace `{namespace}` is blank or contains `/`, which separates the parts \
                 of key names in etcd; name it after the application, such as `ekbatan-lock`"
            );
            return Err(LockError::Unsafe { reason });
        }
        Ok(Self { namespace: namespace.to_owned() })
    }

    /// The key with the number that all tokens of the namespace are counted from.
    pub(crate) fn epoch(&self) -> Vec<u8> {
        format!("{}/epoch", self.namespace).into_bytes()
    }

    /// The place of one acquisition in the queue of a lock.
    pub(crate) fn place(&self, key: &str, owner: Uuid) -> Vec<u8> {
        format!("{}/{}/{owner}", self.namespace, escaped(key)).into_bytes()
    }

    /// All places of a lock.
    pub(crate) fn places(&self, key: &str) -> Folder {
        beginning_with(format!("{}/{}/", self.namespace, escaped(key)))
    }

    /// The places of all locks whose keys begin like this.
    pub(crate) fn locks(&self, prefix: &str) -> Folder {
        beginning_with(format!("{}/{}", self.namespace, escaped(prefix)))
    }

    /// The key and the acquisition of a place.
    pub(crate) fn read(&self, place: &[u8]) -> Option<(String, Uuid)> {
        let place = std::str::from_utf8(place).ok()?;
        let rest = place.strip_prefix(&self.namespace)?.strip_prefix('/')?;
        let (key, owner) = rest.split_once('/')?;
        Some((unescaped(key)?, Uuid::parse_str(owner).ok()?))
    }
}

/// All keys that begin like this. The last byte of a text is never 255.
fn beginning_with(first: String) -> Folder {
    let mut end = first.clone().into_bytes();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    Folder { first: first.into_bytes(), end }
}

/// Replaces `/`, letter by letter, so that the beginning of a key stays the beginning of its name.
fn escaped(key: &str) -> String {
    let mut name = String::with_capacity(key.len());
    for letter in key.chars() {
        match letter {
            // Writing to a text cannot fail.
            '/' | '%' => drop(write!(name, "%{:02X}", letter as u32)),
            other => name.push(other),
        }
    }
    name
}

fn unescaped(name: &str) -> Option<String> {
    let mut parts = name.split('%');
    let mut key = parts.next()?.to_owned();
    for part in parts {
        let (letter, rest) = match (part.strip_prefix("2F"), part.strip_prefix("25")) {
            (Some(rest), _) => ('/', rest),
            (_, Some(rest)) => ('%', rest),
            _ => return None,
        };
        key.push(letter);
        key.push_str(rest);
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_names_its_key_and_its_owner() {
        let names = EtcdNames::within("app").unwrap();
        let owner = Uuid::new_v4();
        for key in ["DC#eu#a", "a/b", "a%2Fb", "%", "//", "é/ü", "epoch"] {
            assert_eq!(names.read(&names.place(key, owner)), Some((key.to_owned(), owner)));
        }
        assert_eq!(names.read(&names.epoch()), None);
        assert_eq!(names.read(b"app/a%zz/x"), None);
    }

    #[test]
    fn no_folder_contains_the_places_of_another_lock() {
        let names = EtcdNames::within("app").unwrap();
        let keys = ["a", "a/", "a/b", "a%2F", "a%", "b", "ab", "epoch"];
        for key in keys {
            let folder = names.places(key);
            for other in keys {
                let place = names.place(other, Uuid::nil());
                let inside = folder.first <= place && place < folder.end;
                assert_eq!(inside, key == other, "{other:?} in the folder of {key:?}");
            }
            assert!(names.epoch() < folder.first || names.epoch() >= folder.end);
        }
    }

    #[test]
    fn locks_are_found_by_the_beginning_of_their_keys() {
        let names = EtcdNames::within("app").unwrap();
        let found = names.locks("DC#e/");
        for (key, inside) in [("DC#e/u", true), ("DC#e/", true), ("DC#e", false), ("XDC#e/", false)]
        {
            let place = names.place(key, Uuid::nil());
            assert_eq!(found.first <= place && place < found.end, inside, "{key}");
        }
    }

    #[test]
    fn a_namespace_without_a_name_is_refused() {
        for namespace in ["", " ", "a/b", "/a"] {
            let error = EtcdNames::within(namespace).unwrap_err();
            assert!(error.to_string().contains("namespace"), "{error}");
        }
    }
}
