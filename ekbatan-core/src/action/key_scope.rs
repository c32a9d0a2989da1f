//! Within what an idempotency key is unique.

use crate::outbox::IdempotencyKey;

/// Within what an idempotency key is unique; see
/// [`ActionExecutorBuilder::key_scope`](super::ActionExecutorBuilder::key_scope).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KeyScope {
    /// Calls of one [principal](super::Execution::principal). Calls without a principal have keys
    /// of their own.
    #[default]
    Principal,
    /// All calls in the executor's namespace, of every principal.
    Namespace,
}

impl KeyScope {
    /// The key of a call by this principal.
    pub(super) fn key(
        self,
        namespace: &str,
        principal: Option<&str>,
        text: String,
    ) -> IdempotencyKey {
        let principal = match self {
            KeyScope::Principal => principal.unwrap_or_default(),
            KeyScope::Namespace => "",
        };
        let (namespace, principal) = (namespace.to_owned(), principal.to_owned());
        IdempotencyKey { namespace, principal, text }
    }
}
