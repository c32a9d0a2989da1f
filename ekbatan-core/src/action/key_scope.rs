//! Within what an idempotency key is unique.

use crate::outbox::{CallKey, KeyKind};

/// Within what an idempotency key is unique; see
/// [`ActionExecutorBuilder::key_scope`](super::ActionExecutorBuilder::key_scope).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KeyScope {
    /// Calls of one [principal](super::Execution::principal). Calls without a principal, or with
    /// an empty one, have keys of their own.
    #[default]
    Principal,
    /// All calls in the executor's namespace, of every principal.
    Namespace,
}

impl KeyScope {
    /// The key of a call by this principal.
    pub(super) fn key(self, namespace: &str, principal: Option<&str>, text: String) -> CallKey {
        let scope = match self {
            KeyScope::Principal => principal.unwrap_or_default(),
            KeyScope::Namespace => "",
        };
        let (namespace, scope) = (namespace.to_owned(), scope.to_owned());
        CallKey { kind: KeyKind::Idempotency, namespace, scope, text }
    }
}
