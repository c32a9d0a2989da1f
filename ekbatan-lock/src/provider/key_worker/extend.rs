//! Making a grant last longer: extensions that a holder asks for, and renewals of its term.
//!
//! Invariants: a lease that has ended is not brought back, whenever the server answers. What an
//! extension may have done is noted before it is sent, because its answer may never come.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use super::server_key::{ServerGrant, ServerKey};
use crate::provider::key_queue::MAX_TURN;
use crate::provider::lease::{Extension, Hold};
use crate::{BackendError, GrantExtension, LockError, LossCause};

/// How often a term is renewed before it would end.
pub(super) const RENEWALS_PER_TERM: u32 = 3;

/// Resolves with the reason when the grant is known to be lost; see
/// [`LockBackend::lost`](crate::LockBackend::lost).
type Gone<'g> = dyn Future<Output = String> + Send + Unpin + 'g;

/// Why the server does not extend a grant. If the session ended, no other holder need have the key.
fn not_extended(gone: &mut Gone<'_>) -> LossCause {
    gone.now_or_never().map_or(LossCause::Taken, LossCause::SessionGone)
}

/// Extends the hold. Repeats that until the hold ends, or until the caller is gone. The server gets no longer term than
/// `longest`, the term of a lease that is renewed: if the process dies, the key is free after it.
pub(super) async fn extend(
    server: &ServerKey,
    hold: &Hold,
    granted: &mut ServerGrant,
    gone: &mut Gone<'_>,
    extension: &Extension,
    longest: Option<Duration>,
) -> Result<(), LockError> {
    let lost = |cause: LossCause| Err(LockError::Lost { key: server.queue.key().clone(), cause });
    let by = extension.by;
    let mut backoff = server.backoff();
    while !extension.answer.is_closed() {
        let asked = Instant::now();
        let wanted = hold.deadline().saturating_duration_since(asked) + by;
        let term = longest.map_or(wanted, |longest| wanted.min(longest)) + MAX_TURN;
        let before = granted.extending(asked + term);
        let extending = server.backend().extend(server.stored(), &granted.grant, term);
        let error = match tokio::time::timeout_at(hold.ends(), extending).await {
            Ok(Ok(true)) => {
                granted.extended(asked + term, before);
                if hold.extend(by, server.term_ends(granted)) {
                    return Ok(());
                }
                return lost(hold.end_of_extensions());
            }
            Ok(Ok(false)) => {
                let cause = not_extended(gone);
                hold.lose(cause.clone());
                return lost(cause);
            }
            Ok(Err(error)) => error,
            Err(_) => BackendError::in_doubt("no answer before the lease ended"),
        };
        let rest = hold.ends().saturating_duration_since(Instant::now());
        if rest.is_zero() {
            hold.expire();
            return lost(hold.end_of_extensions());
        }
        if !error.may_pass() {
            return Err(server.failed(error));
        }
        tracing::debug!(%error, key = %server.queue.key(), "extending a lease failed; trying again");
        tokio::time::sleep(backoff.pause().min(rest)).await;
    }
    // Nobody reads this answer.
    Ok(())
}

/// Renews the term. Returns when to renew it again.
pub(super) async fn renew(
    server: &ServerKey,
    hold: &Hold,
    granted: &mut ServerGrant,
    gone: &mut Gone<'_>,
    term: Duration,
) -> Instant {
    let mut backoff = server.backoff();
    loop {
        let asked = Instant::now();
        // Never beyond `max_hold`.
        let left = hold.deadline().saturating_duration_since(asked);
        let term = term.min(left) + MAX_TURN;
        let before = granted.extending(asked + term);
        let extension = GrantExtension::new(server.stored(), granted.grant, term);
        // What is left after it is for a request of its own.
        let patience = granted.until.saturating_duration_since(asked) / 2;
        let renewals = &server.provider.renewals;
        let renewing = renewals.extend(&server.provider.backend, extension, patience);
        let why = match tokio::time::timeout_at(granted.until, renewing).await {
            Ok(Ok(true)) => {
                granted.extended(asked + term, before);
                // If the lease has ended meanwhile, the worker notices.
                hold.renew(server.term_ends(granted));
                return asked + term / RENEWALS_PER_TERM;
            }
            Ok(Ok(false)) => {
                hold.lose(not_extended(gone));
                return asked + term;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the server did not answer".to_owned(),
        };
        let rest = granted.until.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            hold.lose(LossCause::NotRenewed(why));
            return asked + term;
        }
        tracing::warn!(key = %server.queue.key(), why, "a term could not be renewed; trying again");
        tokio::time::sleep(backoff.pause().min(rest)).await;
    }
}
