//! Holding a key for one waiter: hands out the lease, has it renewed and extended, and notices
//! its end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::extend::{RENEWALS_PER_TERM, extend, renew};
use super::server_key::{ServerGrant, ServerKey};
use crate::provider::key_queue::Waiter;
use crate::provider::lease::{Ended, Extension, Hold};
use crate::provider::telemetry::{self, add_duration, increment};
use crate::{LockOptions, LossCause};

/// Hands the lease out and stays until it has ended. Returns the grant if the next waiter can
/// have it.
pub(super) async fn hold(
    server: &mut ServerKey,
    waiter: Waiter,
    granted: ServerGrant,
) -> Option<ServerGrant> {
    let deadline = Instant::now() + waiter.options.max_hold;
    // Without renewal, the lease must end before the server frees the key.
    let deadline = match waiter.options.term {
        Some(_) => deadline,
        // It is about to be extended.
        None if granted.is_short => deadline,
        None => deadline.min(granted.until),
    };
    let (hold, lease, extensions) = Hold::begin(
        server.queue.key().clone(),
        server.provider.fence(server.queue.key()),
        waiter.holder.clone(),
        granted.token(),
        (deadline, server.term_ends(&granted)),
        waiter.options.max_hold,
        server.task.clone(),
    );
    let _abandoned = AbandonOnDrop(hold.clone());
    let began = Instant::now();
    let provider = server.provider.clone();
    let counts = &provider.counts;
    let hold_span = telemetry::holding(
        &waiter.caller_span,
        provider.backend.name(),
        server.queue.key(),
        lease.token(),
    );
    if let Some(before) =
        server.queue.hold_began(granted.grant, hold.clone(), hold_span.clone(), &waiter)
    {
        if let Some(span) = before.span {
            waiter.acquire_span.follows_from(span);
        }
        telemetry::between(counts, &waiter.acquire_span, began - before.ended);
    }
    increment(&counts.granted);
    add_duration(&counts.waited, began - waiter.since);
    if granted.hand_offs > 0 {
        increment(&counts.handed_on);
    }
    waiter.acquire_span.record("ekbatan.lock.handed_on", granted.hand_offs);
    if server.queue.is_closed() {
        // The leases that were held have been ended already, and this one would not be.
        drop((waiter.answer, lease));
    } else {
        // They enqueued before their scope had the key. Before the lease is sent, because it may be
        // released at once.
        let reentering = server.queue.reentering(&hold);
        // If a waiter is gone, its lease is dropped, which releases it.
        let mut arrived = waiter.answer.send(Ok(Some(lease))).is_ok();
        for (within, lease) in reentering {
            increment(&counts.reentered);
            arrived |= within.answer.send(Ok(Some(lease))).is_ok();
        }
        if arrived {
            server.queue.answer_tries(|| Ok(None));
        }
    }
    let (granted, ended) = watch(server, &hold, granted, &waiter.options, extensions).await;
    let now = Instant::now();
    let keep_for = hold.kept().filter(|rest| match ended {
        Ended::Released => true,
        // Its work may still run, so the server's time must not become shorter.
        Ended::Lost(LossCause::Closed) => now + *rest > granted.at_latest(),
        Ended::Lost(_) => false,
    });
    server.queue.hold_ended(began, now, keep_for.is_some());
    telemetry::over(counts, &hold_span, server.queue.key(), &ended, now - began);
    if let Some(rest) = keep_for {
        keep(server, &hold, granted, rest).await;
        return None;
    }
    match ended {
        Ended::Released if server.queue.waiting() > 0 => {
            hold.return_as(true);
            Some(granted)
        }
        Ended::Released => {
            hold.return_as(server.release(granted).await);
            None
        }
        Ended::Lost(cause) => {
            hold.return_as(false);
            // These leases ended here; the server may still have the key as ours. The extension whose
            // answer is late may yet take effect.
            let is_ours = match cause {
                LossCause::Expired(_)
                | LossCause::NotRenewed(_)
                | LossCause::Forced(_)
                | LossCause::Abandoned => true,
                // Work that was not done when the provider was closed may still run, so the
                // key stays taken if the server frees it by itself.
                LossCause::Closed => !server.backend().frees_by_itself(),
                _ => false,
            };
            if is_ours {
                server.release(granted).await;
            } else {
                server.queue.set_owner(None);
            }
            None
        }
    }
}

/// Answers a release that waits, if the worker ends before it has answered.
struct AbandonOnDrop(Arc<Hold>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// Renews and extends the grant until the hold is over.
async fn watch(
    server: &ServerKey,
    hold: &Hold,
    mut granted: ServerGrant,
    options: &LockOptions,
    mut extensions: mpsc::UnboundedReceiver<Extension>,
) -> (ServerGrant, Ended) {
    let mut warning = server.provider.warn_after().map(|after| Instant::now() + after);
    let term = options.term;
    let grant = granted.grant;
    let mut gone = server.backend().lost(server.stored(), &grant);
    let short = granted.is_short.then(|| granted.until.saturating_duration_since(Instant::now()));
    // At the same moments as those of other leases, except the first one after a hand-over.
    let aligned = |latest| match term {
        Some(term) => {
            let renewals = &server.provider.renewals;
            renewals.aligned(Instant::now(), latest, term / RENEWALS_PER_TERM)
        }
        None => latest,
    };
    let mut renewal = match (short, term) {
        (Some(short), _) => Some(Instant::now() + short / RENEWALS_PER_TERM),
        (None, Some(term)) => Some(aligned(Instant::now() + term / RENEWALS_PER_TERM)),
        (None, None) => None,
    };
    loop {
        let never = Instant::now() + Duration::from_secs(86_400);
        tokio::select! {
            biased;
            ended = hold.ended() => return (granted, ended),
            why = &mut gone => drop(hold.lose(LossCause::SessionGone(why))),
            () = tokio::time::sleep_until(hold.ends()) => hold.expire(),
            Some(extension) = extensions.recv() => {
                let extended = tokio::select! {
                    biased;
                    ended = hold.ended() => return (granted, ended),
                    extended = extend(server, hold, &mut granted, &mut gone, &extension, term) => extended,
                };
                if term.is_none() && !granted.is_short {
                    // The extension has confirmed a grant that was handed over. A renewal now
                    // would take the extension back.
                    renewal = None;
                }
                let _ = extension.answer.send(extended);
            }
            () = tokio::time::sleep_until(warning.unwrap_or(never)), if warning.is_some() => {
                warning = None;
                let after = server.provider.warn_after();
                tracing::warn!(name: "ekbatan.lock.held_long", key = %server.queue.key(), ?after, token = granted.token(), "a lease is held for longer than the threshold");
            }
            () = tokio::time::sleep_until(renewal.unwrap_or(never)), if renewal.is_some() => {
                let whole = term.unwrap_or(options.max_hold);
                let next = tokio::select! {
                    biased;
                    ended = hold.ended() => return (granted, ended),
                    next = renew(server, hold, &mut granted, &mut gone, whole) => next,
                };
                renewal = (term.is_some() || granted.is_short).then(|| aligned(next));
            }
        }
    }
}

/// Keeps the key taken after its work is over: at the server, if the server frees it by
/// itself, and here otherwise.
async fn keep(server: &mut ServerKey, hold: &Hold, granted: ServerGrant, rest: Duration) {
    let until = Instant::now() + rest;
    let grant = granted.grant;
    if server.backend().frees_by_itself() {
        let keeping = server.backend().set_term(server.stored(), &grant, rest);
        let kept = server.asking(keeping).await;
        if !server.queue.is_keeping() && !server.queue.is_closed() {
            // It was released by force meanwhile.
            hold.return_as(false);
            server.release(granted).await;
            return;
        }
        server.queue.stop_keeping();
        server.queue.set_owner(None);
        hold.return_as(kept.unwrap_or_else(|error| {
            tracing::warn!(%error, key = server.stored(), "the time for which a lock is kept could not be set; it is free when its term ends");
            false
        }));
        return;
    }
    hold.return_as(true);
    {
        let mut gone = server.backend().lost(server.stored(), &grant);
        while server.queue.is_keeping() {
            tokio::select! {
                () = tokio::time::sleep_until(until) => break,
                _ = &mut gone => break,
                // Wakes on force and on close, and also when a waiter enqueues.
                () = server.queue.changed() => {}
            }
        }
    }
    server.queue.stop_keeping();
    server.release(granted).await;
}
