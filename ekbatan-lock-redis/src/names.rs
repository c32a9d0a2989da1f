//! The names of keys and channels at the server.

use ekbatan_lock::LockError;
use uuid::Uuid;

/// The names within one namespace. All names of one lock have the lock's key as their hash
/// tag, so that one script can access all of them.
#[derive(Debug, Clone)]
pub(crate) struct RedisNames {
    namespace: String,
}

impl RedisNames {
    pub(crate) fn within(namespace: &str) -> Result<Self, LockError> {
        // Redis would read a brace here as the start of the hash tag.
        if namespace.trim().is_empty() || namespace.contains(['{', '}']) {
            let reason = format!(
                "the namespace `{namespace}` is blank or contains braces; name it after the \
                 application, such as `ekbatan-lock`"
            );
            return Err(LockError::Unsafe { reason });
        }
        if let Some(end) = [":fence", ":wanted"].into_iter().find(|end| namespace.ends_with(end)) {
            let reason = format!(
                "the namespace `{namespace}` ends with `{end}`: its locks would have the names of \
                 what other applications store beside theirs; choose another one"
            );
            return Err(LockError::Unsafe { reason });
        }
        Ok(Self { namespace: namespace.to_owned() })
    }

    /// The lock: its holder, while the key is held.
    pub(crate) fn lock(&self, key: &str) -> String {
        format!("{}:{{{key}}}", self.namespace)
    }

    /// The pattern of the locks whose keys begin like this.
    pub(crate) fn locks(&self, prefix: &str) -> String {
        let mut pattern = String::new();
        for letter in format!("{}:{{{prefix}", self.namespace).chars() {
            if matches!(letter, '*' | '?' | '[' | ']' | '\\') {
                pattern.push('\\');
            }
            pattern.push(letter);
        }
        pattern + "*}"
    }

    /// The key of a lock with this name.
    pub(crate) fn key_of<'n>(&self, lock: &'n str) -> Option<&'n str> {
        lock.strip_prefix(&self.namespace)?.strip_prefix(":{")?.strip_suffix('}')
    }

    /// The last token of the key.
    pub(crate) fn fence(&self, key: &str) -> String {
        format!("{}:fence:{{{key}}}", self.namespace)
    }

    /// The processes that wait for the key, in order.
    pub(crate) fn waiters(&self, key: &str) -> String {
        format!("{}:wanted:{{{key}}}", self.namespace)
    }

    /// The mark that a try of this owner was cancelled, in case the try arrives later.
    pub(crate) fn given_up(&self, key: &str, owner: Uuid) -> String {
        format!("{}:given-up:{{{key}}}:{owner}", self.namespace)
    }

    /// The channel for hints of freed keys.
    pub(crate) fn freed(&self) -> String {
        format!("{}:freed", self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_of_a_lock_have_one_hash_tag() {
        let names = RedisNames::within("app").unwrap();
        assert_eq!(names.lock("DC#eu#a"), "app:{DC#eu#a}");
        let owner = Uuid::nil();
        for name in [names.fence("k"), names.waiters("k"), names.given_up("k", owner)] {
            let tag = &name[name.find('{').unwrap() + 1..name.find('}').unwrap()];
            assert_eq!(tag, "k", "{name}");
        }
    }

    #[test]
    fn no_lock_has_the_name_of_a_fence() {
        let names = RedisNames::within("app").unwrap();
        for key in ["fence:{k}", "fence:k", ":fence:{k}", "k}", "{k}"] {
            assert_ne!(names.lock(key), names.fence("k"));
        }
    }

    #[test]
    fn a_lock_is_found_by_the_beginning_of_its_key() {
        let names = RedisNames::within("a*b").unwrap();
        assert_eq!(names.locks("DC#e?#"), "a\\*b:{DC#e\\?#*}");
        for key in ["DC#eu#k", "{k}", "fence:{k}"] {
            assert_eq!(names.key_of(&names.lock(key)), Some(key));
            assert_eq!(names.key_of(&names.fence(key)), None);
        }
    }

    #[test]
    fn a_namespace_without_a_name_is_refused() {
        for namespace in ["", " ", "a{b", "a}b"] {
            let error = RedisNames::within(namespace).unwrap_err();
            assert!(error.to_string().contains("namespace"), "{error}");
        }
    }

    #[test]
    fn a_namespace_within_the_names_of_another_one_is_refused() {
        let app = RedisNames::within("app").unwrap();
        for of_app in [app.fence("k"), app.waiters("k")] {
            let namespace = of_app.strip_suffix(":{k}").unwrap();
            let error = RedisNames::within(namespace).unwrap_err().to_string();
            assert!(error.contains(namespace) && error.contains("choose another one"), "{error}");
        }
        RedisNames::within("fence").unwrap();
    }
}
