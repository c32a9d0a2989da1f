//! The clerk of a desk: obtains the key from the server, hands it out, stays with it until it
//! is over, and passes it on or gives it back.
//!
//! What always holds: whatever the server granted, the clerk gives back.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use uuid::Uuid;

use super::{Desk, IN_A_ROW, Waiter};
use crate::lease::{Ended, Extension, Hold};
use crate::provider::Shared;
use crate::telemetry::{self, one_more, so_long};
use crate::{Attempt, Grant, GrantRequest, LockError, LockOptions, LockScope, LossCause};

/// How often in a row a key goes from one to the next within this process, once it has done so
/// for a moment.
const HAND_OFFS: u16 = 16;

/// A trip to the server and back takes about as long: who only looks at something under the
/// key would spend the better part of the time on giving it back.
const MOMENT: Duration = Duration::from_millis(1);

/// After what time it is first looked at whether another process has taken its turn.
const LOOK: Duration = Duration::from_millis(1);

/// What a token leaves for counting hand-offs behind the server's own count.
pub(crate) const HAND_OFF_BITS: u32 = 16;

/// What part of its turn a process holds back for, at most, where it wants more.
const HELD_BACK: u32 = 8;

/// How often a term is renewed before it would run out.
const RENEWALS_PER_TERM: u32 = 3;

/// A key that the server has granted to this process.
struct Held {
    grant: Grant,
    /// When the server frees it, as counted from before it was asked.
    until: Instant,
    /// When the row of hand-offs began.
    since: Instant,
    hand_offs: u16,
}

impl Held {
    fn token(&self) -> i64 {
        (self.grant.token << HAND_OFF_BITS) | i64::from(self.hand_offs)
    }

    /// Whether it may go to one more of this process.
    fn may_go_on(&self) -> bool {
        let passed = self.since.elapsed();
        // The count must fit behind the token.
        let often = if passed < MOMENT { u16::MAX } else { HAND_OFFS };
        self.hand_offs < often && passed < IN_A_ROW
    }
}

/// Serves a key until nobody wants it.
pub(crate) async fn serve(shared: Arc<Shared>, desk: Arc<Desk>) {
    let server = Server { shared: &shared, desk: &desk };
    let mut held: Option<Held> = None;
    loop {
        let Some(waiter) = desk.next() else {
            match held.take() {
                Some(unwanted) => {
                    server.give_back(unwanted).await;
                }
                None => {
                    // Who comes back at once must not find a desk that knows of no others.
                    if let Some(away) = server.away() {
                        tokio::select! {
                            () = tokio::time::sleep_until(away) => {}
                            () = desk.called.notified() => {}
                        }
                    } else if shared.retire(&desk) {
                        return;
                    }
                }
            }
            continue;
        };
        desk.state().contending = true;
        let obtained = server.obtain(held.take(), &waiter).await;
        if !matches!(obtained, Ok(Obtained::Held(_))) {
            desk.state().contending = false;
        }
        match obtained {
            Ok(Obtained::Held(grant)) => held = server.serve(waiter, grant).await,
            Ok(Obtained::Busy) => drop(waiter.answer.send(Ok(None))),
            Ok(Obtained::NobodyWaits) => {}
            Err(error) => drop(waiter.answer.send(Err(error))),
        }
    }
}

enum Obtained {
    Held(Held),
    Busy,
    /// Who wanted it was dropped meanwhile.
    NobodyWaits,
}

struct Server<'a> {
    shared: &'a Shared,
    desk: &'a Desk,
}

impl Server<'_> {
    fn failed(&self, source: crate::BackendError) -> LockError {
        LockError::Backend { key: self.desk.key.clone(), source }
    }

    /// A grant for this waiter: the one that is there, if it may go on and lasts long enough,
    /// or a new one.
    async fn obtain(&self, held: Option<Held>, waiter: &Waiter) -> Result<Obtained, LockError> {
        if let Some(mut held) = held {
            if held.may_go_on() && self.lasts(&mut held, waiter).await {
                held.hand_offs += 1;
                return Ok(Obtained::Held(held));
            }
            let turn = held.since.elapsed();
            self.give_back(held).await;
            self.desk.state().cut_short = Some(turn);
        }
        if !waiter.only_try {
            self.give_way().await;
        }
        self.contend(waiter).await
    }

    /// Whether a grant lasts for as long as the waiter may hold, if need be after extending it.
    async fn lasts(&self, held: &mut Held, waiter: &Waiter) -> bool {
        let term = waiter.term();
        let asked = Instant::now();
        if held.until >= asked + term - IN_A_ROW {
            return true;
        }
        match self.shared.backend.extend(&self.desk.stored, &held.grant, term).await {
            Ok(true) => {
                held.until = asked + term;
                true
            }
            _ => false,
        }
    }

    async fn contend(&self, waiter: &Waiter) -> Result<Obtained, LockError> {
        let backend = &self.shared.backend;
        let key = &self.desk.stored;
        let counts = &self.shared.counts;
        let (mut contended, mut named) = (waiter.contended, waiter.asking.is_disabled());
        loop {
            if waiter.answer.is_closed() || self.desk.is_closed() {
                return Ok(Obtained::NobodyWaits);
            }
            // Listening begins before the try, lest a key that is freed in between be missed.
            let mut freed = backend.freed(key);
            let hinted = poll_fn(|cx| Poll::Ready(freed.as_mut().poll(cx).is_ready())).await;
            let request = GrantRequest {
                owner: Uuid::new_v4(),
                holder: self.shared.holder.clone(),
                term: waiter.term(),
            };
            let asked = Instant::now();
            let pause = match backend.try_grant(key, &request).await {
                Ok(Attempt::Granted(grant)) => {
                    return Ok(Obtained::Held(Held {
                        grant,
                        until: asked + request.term,
                        since: asked,
                        hand_offs: 0,
                    }));
                }
                Ok(Attempt::Busy(remaining)) => {
                    if !contended {
                        contended = true;
                        one_more(&counts.contended);
                    }
                    if waiter.only_try {
                        return Ok(Obtained::Busy);
                    }
                    // Jitter keeps processes from trying in step.
                    let poll = backend.poll_interval().mul_f64(0.5 + fastrand::f64());
                    remaining.map_or(poll, |remaining| remaining.min(poll))
                }
                Err(error) => {
                    // What was asked may have been granted all the same.
                    let unheard = Grant { owner: request.owner, token: 0 };
                    if let Err(error) = backend.release(key, &unheard).await {
                        tracing::debug!(%error, key, "whether a failed try was granted is unknown; its term ends it");
                    }
                    return Err(self.failed(error));
                }
            };
            // A waiter who is dropped calls; so does anyone who lines up.
            let pause = if hinted { Duration::ZERO } else { pause.max(Duration::from_millis(1)) };
            let until = Instant::now() + pause;
            let mut naming = pin!(self.name_holder(waiter));
            let word = loop {
                tokio::select! {
                    () = &mut freed, if !hinted => break self.hold_back().await,
                    () = tokio::time::sleep_until(until) => break hinted,
                    () = self.desk.called.notified() => {
                        if waiter.answer.is_closed() || self.desk.is_closed() {
                            return Ok(Obtained::NobodyWaits);
                        }
                    }
                    () = &mut naming, if !named => named = true,
                }
            };
            one_more(if word { &counts.hints } else { &counts.polls });
            waiter.asking.in_scope(|| {
                tracing::debug!(name: "ekbatan.lock.retry", word, "a busy key is tried again");
            });
        }
    }

    /// Notes whom at the server a waiter waits for, while it does.
    async fn name_holder(&self, waiter: &Waiter) {
        if let Ok(Some(holder)) = self.shared.backend.inspect(&self.desk.stored).await {
            telemetry::waited_for(&waiter.asking, &holder);
        }
    }

    /// Hands the lease out and stays with it until it is over. What it answers may go on to
    /// the next.
    async fn serve(&self, waiter: Waiter, held: Held) -> Option<Held> {
        let deadline = Instant::now() + waiter.options.max_hold;
        // Not later than the server frees the key, unless the term is renewed.
        let deadline = match waiter.options.term {
            Some(_) => deadline,
            None => deadline.min(held.until),
        };
        let scope = waiter.scope.unwrap_or_else(LockScope::fresh);
        let (hold, lease, extensions) = Hold::begin(
            self.desk.key.clone(),
            self.desk.stored.clone(),
            scope,
            held.token(),
            deadline,
            waiter.options.max_hold,
        );
        let since = Instant::now();
        let provider = self.shared.backend.name();
        let holding = telemetry::holding(&waiter.within, provider, &self.desk.key, lease.token());
        {
            let mut state = self.desk.state();
            if let Some((began, ended)) = state.before.take()
                && ended > waiter.since
            {
                // That one came between; who had the key at first is known.
                if began > waiter.since
                    && let Some(before) = &state.holding
                {
                    waiter.asking.follows_from(before);
                }
                telemetry::between(&self.shared.counts, &waiter.asking, since - ended);
            }
            state.hold = Some(hold.clone());
            state.holding = Some(holding.clone());
            state.contending = false;
        }
        let counts = &self.shared.counts;
        one_more(&counts.granted);
        so_long(&counts.waited, since - waiter.since);
        if held.hand_offs > 0 {
            one_more(&counts.handed_on);
        }
        waiter.asking.record("ekbatan.lock.handed_on", held.hand_offs);
        // Of a waiter who is gone, the lease comes back and is released by its drop.
        let _ = waiter.answer.send(Ok(Some(lease)));
        let (held, ended) = self.watch(&hold, held, &waiter.options, extensions).await;
        let kept = hold.kept().filter(|_| ended.is_orderly());
        let over = Instant::now();
        {
            let mut state = self.desk.state();
            state.hold = None;
            state.before = Some((since, over));
            state.keeping = kept.is_some() && !state.closed;
        }
        telemetry::over(counts, &holding, &ended, over - since);
        if let Some(rest) = kept {
            self.keep(&hold, held, rest).await;
            return None;
        }
        match ended {
            Ended::Released if self.desk.is_wanted() => {
                hold.return_as(true);
                Some(held)
            }
            Ended::Released => {
                hold.return_as(self.give_back(held).await);
                None
            }
            Ended::Lost(cause) => {
                hold.return_as(false);
                // What expired here is still ours there.
                use LossCause::{Closed, Expired, Forced};
                if matches!(cause, Expired(_) | Forced(_) | Closed) {
                    self.give_back(held).await;
                }
                None
            }
        }
    }

    /// Renews, extends and listens until the hold is over.
    async fn watch(
        &self,
        hold: &Hold,
        mut held: Held,
        options: &LockOptions,
        mut extensions: mpsc::UnboundedReceiver<Extension>,
    ) -> (Held, Ended) {
        let backend = &self.shared.backend;
        let key = &self.desk.stored;
        let term = options.term;
        let grant = held.grant;
        let mut gone = backend.lost(key, &grant);
        let mut renewal = term.map(|term| Instant::now() + term / RENEWALS_PER_TERM);
        loop {
            let never = Instant::now() + Duration::from_secs(86_400);
            tokio::select! {
                biased;
                ended = hold.ended() => return (held, ended),
                why = &mut gone => drop(hold.lose(LossCause::SessionGone(why))),
                () = tokio::time::sleep_until(hold.deadline()) => {
                    hold.lose(LossCause::Expired(hold.max_hold()));
                }
                Some(Extension { by, answer }) = extensions.recv() => {
                    let _ = answer.send(self.extend(hold, &mut held, by).await);
                }
                () = tokio::time::sleep_until(renewal.unwrap_or(never)), if renewal.is_some() => {
                    let term = term.unwrap_or(options.max_hold);
                    renewal = Some(self.renew(hold, &mut held, term).await);
                }
            }
        }
    }

    async fn extend(&self, hold: &Hold, held: &mut Held, by: Duration) -> Result<(), LockError> {
        let asked = Instant::now();
        let term = hold.deadline().saturating_duration_since(asked) + by + IN_A_ROW;
        match self.shared.backend.extend(&self.desk.stored, &held.grant, term).await {
            Ok(true) => {
                held.until = held.until.max(asked + term);
                hold.defer(by);
                Ok(())
            }
            Ok(false) => {
                hold.lose(LossCause::Taken);
                Err(LockError::Lost { key: self.desk.key.clone(), cause: LossCause::Taken })
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Renews the term, and answers when to do so again.
    async fn renew(&self, hold: &Hold, held: &mut Held, term: Duration) -> Instant {
        let asked = Instant::now();
        let backend = &self.shared.backend;
        // Never beyond what the holder asked for.
        let left = hold.deadline().saturating_duration_since(asked);
        let term = term.min(left) + IN_A_ROW;
        let renewing = backend.extend(&self.desk.stored, &held.grant, term);
        match tokio::time::timeout_at(held.until, renewing).await {
            Ok(Ok(true)) => {
                held.until = asked + term;
                asked + term / RENEWALS_PER_TERM
            }
            Ok(Ok(false)) => {
                hold.lose(LossCause::Taken);
                asked + term
            }
            failed => {
                let why = match failed {
                    Ok(Err(error)) => error.to_string(),
                    _ => "the server did not answer".to_owned(),
                };
                if Instant::now() >= held.until {
                    hold.lose(LossCause::NotRenewed(why));
                } else {
                    tracing::warn!(key = %self.desk.key, why, "a term could not be renewed; trying again");
                }
                held.until.min(Instant::now() + term / (RENEWALS_PER_TERM * 4))
            }
        }
    }

    /// Leaves the key taken for a while, though its work is over: with the server, which frees
    /// it by itself, or else here.
    async fn keep(&self, hold: &Hold, held: Held, rest: Duration) {
        let until = Instant::now() + rest;
        let (backend, key) = (&self.shared.backend, &self.desk.stored);
        if backend.frees_by_itself() {
            let kept = backend.extend(key, &held.grant, rest).await;
            self.desk.state().keeping = false;
            hold.return_as(kept.unwrap_or_else(|error| {
                tracing::warn!(%error, key, "for how long a lock is kept could not be said; its term ends it");
                false
            }));
            return;
        }
        hold.return_as(true);
        let grant = held.grant;
        let mut gone = backend.lost(key, &grant);
        while self.desk.state().keeping {
            tokio::select! {
                () = tokio::time::sleep_until(until) => break,
                _ = &mut gone => break,
                // Who forces it, or closes the desk, calls; so does anyone who lines up.
                () = self.desk.called.notified() => {}
            }
        }
        self.desk.state().keeping = false;
        self.give_back(held).await;
    }

    /// Until when another process, which wanted the key that was given back, has its turn.
    fn away(&self) -> Option<Instant> {
        let mut state = self.desk.state();
        state.away = state.away.filter(|away| *away > Instant::now());
        state.away
    }

    /// Waits until that process is seen to have the key, and until its turn is over at most.
    /// Only then is the key tried for: the server would give it to whoever is first, who is
    /// the one that has just had it.
    async fn give_way(&self) {
        let mut pause = LOOK;
        while let Some(away) = self.away() {
            tokio::time::sleep_until(away.min(Instant::now() + pause)).await;
            if let Ok(Some(_)) = self.shared.backend.inspect(&self.desk.stored).await {
                self.desk.state().away = None;
            }
            pause *= 2;
        }
    }

    /// Word of a free key reaches processes in an order that is always the same. Those that
    /// had turns as long as they may be and want more hold back for a moment each time, by
    /// chance, lest the first of them always win; it is a small part of a turn.
    async fn hold_back(&self) -> bool {
        let cut_short = self.desk.state().cut_short;
        if let Some(turn) = cut_short {
            tokio::time::sleep((turn / HELD_BACK).mul_f64(fastrand::f64())).await;
        }
        true
    }

    /// Gives the key back, and says whether it was ours.
    async fn give_back(&self, held: Held) -> bool {
        self.desk.state().cut_short = None;
        match self.shared.backend.release(&self.desk.stored, &held.grant).await {
            Ok(released) => {
                if released.wanted {
                    let away = Instant::now() + self.shared.backend.give_way();
                    self.desk.state().away = Some(away);
                }
                released.ours
            }
            Err(error) => {
                tracing::warn!(%error, key = %self.desk.key, "a lock could not be given back; its term ends it");
                false
            }
        }
    }
}
