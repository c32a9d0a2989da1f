//! What things are called at the server.

use ekbatan_lock::LockError;
use uuid::Uuid;

/// The names within one namespace. All that belongs to one lock has the lock's key as its
/// hash tag, so that one script may touch all of it.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    namespace: String,
}

impl Names {
    pub(crate) fn within(namespace: &str) -> Result<Self, LockError> {
        // A brace here would be taken for the beginning of the hash tag.
        if namespace.trim().is_empty() || namespace.contains(['{', '}']) {
            let reason = format!(
                "the namespace `{namespace}` is blank or has braces in it; name it after the \
                 application, such as `ekbatan-lock`"
            );
            return Err(LockError::Unsafe { reason });
        }
        Ok(Self { namespace: namespace.to_owned() })
    }

    /// Who holds the key.
    pub(crate) fn lock(&self, key: &str) -> String {
        format!("{}:{{{key}}}", self.namespace)
    }

    /// The last token of the key.
    pub(crate) fn fence(&self, key: &str) -> String {
        format!("{}:fence:{{{key}}}", self.namespace)
    }

    /// That somebody found the key held and waits.
    pub(crate) fn wanted(&self, key: &str) -> String {
        format!("{}:wanted:{{{key}}}", self.namespace)
    }

    /// That a try of this owner was given up, should it arrive only now.
    pub(crate) fn given_up(&self, key: &str, owner: Uuid) -> String {
        format!("{}:given-up:{{{key}}}:{owner}", self.namespace)
    }

    /// The channel that tells of keys that have become free.
    pub(crate) fn freed(&self) -> String {
        format!("{}:freed", self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_lock_has_one_hash_tag() {
        let names = Names::within("app").unwrap();
        assert_eq!(names.lock("DC#eu#a"), "app:{DC#eu#a}");
        let owner = Uuid::nil();
        for name in [names.fence("k"), names.wanted("k"), names.given_up("k", owner)] {
            let tag = &name[name.find('{').unwrap() + 1..name.find('}').unwrap()];
            assert_eq!(tag, "k", "{name}");
        }
    }

    #[test]
    fn no_key_has_the_name_of_another_ones_fence() {
        let names = Names::within("app").unwrap();
        for key in ["fence:{k}", "fence:k", ":fence:{k}", "k}", "{k}"] {
            assert_ne!(names.lock(key), names.fence("k"));
        }
    }

    #[test]
    fn a_namespace_without_a_name_is_refused() {
        for namespace in ["", " ", "a{b", "a}b"] {
            let error = Names::within(namespace).unwrap_err();
            assert!(error.to_string().contains("namespace"), "{error}");
        }
    }
}
