//! Getting a grant for the next waiter: the grant that is there, if it can be handed off, or a
//! new one, for which this process contends with others.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::backoff::Backoff;
use super::server_key::{ServerGrant, ServerKey};
use crate::provider::key_queue::{MAX_TURN, Waiter};
use crate::provider::telemetry::{self, increment};
use crate::{Attempt, BackendError, FailureKind, Grant, GrantRequest};

/// Initial delay before checking whether another process took the key.
const FIRST_CHECK: Duration = Duration::from_millis(1);

/// How long a caller without a limit to its wait waits for a server that is not available.
const PATIENCE: Duration = Duration::from_secs(90);

/// The longest random delay after a hint, as a fraction of the last turn.
const MAX_DELAY_FRACTION: u32 = 8;

/// The error of a grant that is over when its answer arrives.
const LATE: &str = "it granted the key so late that the lease would be over";

/// The server calls the requests that it has registered. After this time a request is repeated in any case.
const UNTIL_CALLED: Duration = Duration::from_secs(86_400);

pub(super) enum Obtained {
    Granted(ServerGrant),
    Busy,
    /// The waiter was dropped, or the queue was closed.
    NotWanted,
}

pub(super) async fn obtain(
    server: &mut ServerKey,
    granted: Option<ServerGrant>,
    waiter: &Waiter,
) -> Result<Obtained, BackendError> {
    if let Some(mut granted) = granted {
        if granted.may_hand_off() && lasts(server, &mut granted, waiter).await {
            granted.hand_offs += 1;
            return Ok(Obtained::Granted(granted));
        }
        let turn = granted.since.elapsed();
        server.release(granted).await;
        server.cut_short = Some(turn);
    }
    if !waiter.only_try {
        give_way(server).await;
    }
    contend(server, waiter).await
}

/// Whether the grant lasts for the waiter's term. Changes its term if necessary.
async fn lasts(server: &ServerKey, granted: &mut ServerGrant, waiter: &Waiter) -> bool {
    let term = waiter.term();
    let asked = Instant::now();
    let too_short = granted.until < asked + term - MAX_TURN;
    // If this process died or stood still, the server would keep the key for longer than its
    // holder asked for.
    let too_long = granted.until > asked + term;
    if !too_short && !too_long {
        return true;
    }
    let before = granted.extending(asked + term);
    let (backend, key) = (server.backend(), server.stored());
    let changing = if too_long {
        backend.set_term(key, &granted.grant, term)
    } else {
        backend.extend(key, &granted.grant, term)
    };
    match server.asking(changing).await {
        Ok(true) => {
            if too_long {
                granted.ends(asked + term, before);
            } else {
                granted.extended(asked + term, before);
            }
            if granted.is_over() {
                // The server may have begun the term when its answer was due.
                granted.extending(Instant::now() + term);
                return false;
            }
            true
        }
        _ => false,
    }
}

/// Waits until the process whose turn it is has the key, at most until its turn ends. The
/// server grants a free key to the first that asks, which would be this process again.
async fn give_way(server: &mut ServerKey) {
    let mut pause = FIRST_CHECK;
    if server.other_turn().is_some() {
        server.queue.other_process_is_next();
    }
    while let Some(turn_ends) = server.other_turn() {
        tokio::time::sleep_until(turn_ends.min(Instant::now() + pause)).await;
        let looking = server.backend().inspect(server.stored());
        if let Ok(Some(_)) = server.asking(looking).await {
            server.end_other_turn();
        }
        pause *= 2;
    }
}

/// Asks the server until it grants the key, or the waiter does not want it any more.
async fn contend(server: &mut ServerKey, waiter: &Waiter) -> Result<Obtained, BackendError> {
    let (provider, queue) = (server.provider.clone(), server.queue.clone());
    let (backend, key, counts) = (&*provider.backend, queue.stored(), &provider.counts);
    let not_wanted = || waiter.answer.is_closed() || queue.is_closed();
    let mut backoff = server.backoff();
    let (mut contended, mut named) = (waiter.contended, waiter.acquire_span.is_disabled());
    let (mut owner, mut queued) = (Uuid::new_v4(), false);
    loop {
        if not_wanted() {
            if queued {
                leave_queue(server, owner, waiter.term()).await;
            }
            return Ok(Obtained::NotWanted);
        }
        if let Err(error) = server.settle().await {
            // The loop begins with the question whether the key is still wanted.
            pause(server, waiter, error, &mut backoff).await?;
            continue;
        }
        // Listen before trying, so that a release in between is not missed.
        let mut freed = backend.freed(key);
        let hinted = poll_fn(|cx| Poll::Ready(freed.as_mut().poll(cx).is_ready())).await;
        let mut handed = backend.handed_over(key, owner);
        let early = poll_fn(|cx| Poll::Ready(handed.as_mut().poll(cx).is_ready())).await;
        let request = GrantRequest {
            owner,
            holder: server.provider.holder.clone(),
            term: waiter.term(),
            waits: !waiter.only_try,
        };
        let asked = Instant::now();
        server.queue.set_owner(Some(request.owner));
        let answer = server.asking(backend.try_grant(key, &request)).await;
        if matches!(answer, Ok(Attempt::Busy(_))) {
            server.queue.set_owner(None);
        }
        let granted = match &answer {
            Ok(Attempt::Granted(grant)) => Some(ServerGrant::new(*grant, asked, request.term)),
            Ok(Attempt::HandedOver(hand_over)) => Some(ServerGrant::handed_over(*hand_over)),
            _ => None,
        };
        if let Some(granted) = granted {
            if let Some(granted) = accept(server, waiter, granted, &mut backoff).await? {
                return Ok(Obtained::Granted(granted));
            }
            (owner, queued) = (Uuid::new_v4(), false);
            continue;
        }
        let pause = match answer {
            Ok(answer) => {
                queue.answered();
                queue.held_elsewhere();
                backoff = server.backoff();
                if !contended {
                    contended = true;
                    increment(&counts.contended);
                }
                if waiter.only_try {
                    return Ok(Obtained::Busy);
                }
                // Jitter keeps processes from polling in step.
                let poll = backend.poll_interval().mul_f64(0.5 + fastrand::f64());
                match answer {
                    Attempt::Busy(Some(remaining)) => remaining.min(poll),
                    Attempt::Queued => {
                        queued = true;
                        UNTIL_CALLED
                    }
                    _ => poll,
                }
            }
            Err(error) => {
                match error.kind() {
                    // The owner has its place as before.
                    FailureKind::Unavailable if queued => {}
                    FailureKind::Unavailable => queue.set_owner(None),
                    // The server may have granted the key although the call failed.
                    _ => {
                        server.doubt(request.owner, asked + request.term);
                        // A backend may refuse an owner that has given up.
                        (owner, queued) = (Uuid::new_v4(), false);
                    }
                }
                // The loop begins with the question whether the key is still wanted.
                if let Err(error) = pause(server, waiter, error, &mut backoff).await {
                    if queued {
                        // Left after the caller has its answer, because the server may be away.
                        server.doubt(owner, Instant::now() + request.term);
                    }
                    return Err(error);
                }
                continue;
            }
        };
        let hinted = hinted || early;
        let pause = if hinted { Duration::ZERO } else { pause.max(Duration::from_millis(1)) };
        let until = Instant::now() + pause;
        let mut handed_over = None;
        let by_hint = {
            let mut naming = pin!(name_holder(server, waiter));
            loop {
                tokio::select! {
                    () = &mut freed, if !hinted => {
                        random_delay(server.cut_short).await;
                        break true;
                    }
                    handed = &mut handed, if !early => {
                        handed_over = handed;
                        break true;
                    }
                    () = tokio::time::sleep_until(until) => break hinted,
                    // Wakes when a waiter is dropped, and also when one enqueues.
                    () = server.queue.changed() => {
                        // The loop begins with the same question.
                        if not_wanted() {
                            break true;
                        }
                    }
                    () = &mut naming, if !named => named = true,
                }
            }
        };
        increment(if by_hint { &counts.hints } else { &counts.polls });
        if let Some(hand_over) = handed_over {
            let granted = ServerGrant::handed_over(hand_over);
            if let Some(granted) = accept(server, waiter, granted, &mut backoff).await? {
                return Ok(Obtained::Granted(granted));
            }
            (owner, queued) = (Uuid::new_v4(), false);
            continue;
        }
        waiter.acquire_span.in_scope(|| {
            tracing::debug!(name: "ekbatan.lock.retry", word = by_hint, "a busy key is tried again");
        });
    }
}

/// The grant, unless it is over. Then the server may still have the key as ours, because it may have
/// begun the term when its answer was due: the grant is in doubt, and the try is repeated.
async fn accept(
    server: &mut ServerKey,
    waiter: &Waiter,
    granted: ServerGrant,
    backoff: &mut Backoff,
) -> Result<Option<ServerGrant>, BackendError> {
    if granted.is_over() {
        server.doubt(granted.grant.owner, Instant::now() + waiter.term());
        pause(server, waiter, BackendError::in_doubt(LATE), backoff).await?;
        return Ok(None);
    }
    server.queue.answered();
    Ok(Some(granted))
}

/// Has the server forget the request, or release the key if it was handed over by now. If that fails, it
/// is repeated until the term would have ended: a backend may have confirmed the hand-over for the whole
/// term meanwhile.
async fn leave_queue(server: &mut ServerKey, owner: Uuid, term: Duration) {
    let unknown = Grant { owner, token: 0 };
    let leaving = server.backend().release(server.stored(), &unknown);
    let Err(error) = server.asking(leaving).await else {
        server.queue.set_owner(None);
        return;
    };
    tracing::debug!(%error, key = server.stored(), "a waiter could not leave the queue of the server");
    if error.may_pass() {
        server.doubt(owner, Instant::now() + term);
    } else {
        server.queue.set_owner(None);
    }
}

/// Waits before a try that failed is repeated, at most while the waiter wants the key. Returns
/// the error if repeating is of no use to the waiter.
async fn pause(
    server: &ServerKey,
    waiter: &Waiter,
    error: BackendError,
    backoff: &mut Backoff,
) -> Result<(), BackendError> {
    // Of all waiters of the key, because each of them is served only after the one before it.
    let since = server.queue.failing_since().max(waiter.since);
    let given_up = waiter.waits_for_ever && since.elapsed() >= PATIENCE;
    if waiter.only_try || given_up || !error.may_pass() {
        return Err(error);
    }
    tracing::debug!(%error, key = server.stored(), "a lock could not be tried; trying again");
    server.queue.failed(error);
    let not_wanted = || waiter.answer.is_closed() || server.queue.is_closed();
    server.pause(backoff.pause(), not_wanted).await;
    Ok(())
}

/// Records the present holder in the span of the waiter.
async fn name_holder(server: &ServerKey, waiter: &Waiter) {
    if let Ok(Some(holder)) = server.backend().inspect(server.stored()).await {
        telemetry::waited_for(&waiter.acquire_span, &holder);
    }
}

/// Hints reach the processes always in the same order. A process that used up its last turn
/// and wants more delays its next try by a random, small part of that turn, so that the first
/// process in this order does not always win.
async fn random_delay(last_turn: Option<Duration>) {
    if let Some(turn) = last_turn {
        tokio::time::sleep(longest_delay(turn).mul_f64(fastrand::f64())).await;
    }
}

/// One long hold counts as a short turn: while the process sleeps, it does not see that the key is
/// free, or that its caller has gone.
fn longest_delay(last_turn: Duration) -> Duration {
    last_turn.min(MAX_TURN) / MAX_DELAY_FRACTION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_a_part_of_a_short_turn_however_long_the_key_was_held() {
        let millis = Duration::from_millis;
        assert_eq!(longest_delay(millis(8)), millis(1));
        for turn in [MAX_TURN, millis(100), Duration::from_secs(3_600), Duration::MAX] {
            assert_eq!(longest_delay(turn), MAX_TURN / MAX_DELAY_FRACTION, "after {turn:?}");
        }
    }
}
