//! A node: handles events in this process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ekbatan_core::action::{Action, ActionExecutor};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::ending::{HandedBack, told_to_end};
use crate::error::StartError;
use crate::handlers::handler_set::HandlerSet;
use crate::handlers::node_handler::{Counts, Handler};
use crate::nodes::alive::{Alive, Life};
use crate::nodes::fences::FenceTasks;
use crate::nodes::membership::Membership;
use crate::nodes::registration::Registrar;
use crate::relay::{EventRelay, RelayTerms};
use crate::retention::Retention;
use crate::runs::delivery_run::Runner;
use crate::runs::marks::Marks;
use crate::settings::Settings;
use crate::worker::doorbell::NodeDoorbell;
use crate::worker::gauges::Gauges;
use crate::worker::heart::Heart;
use crate::worker::shard_worker::{ShardWorker, Stop};
use crate::{EventHandler, HandledEvent, HandlerOptions};

/// For how long at most a node that is drained waits for what else it does, as its retention.
const LONGEST_END: Duration = Duration::from_secs(10);

/// Handles events on every shard, until it is drained or dropped.
///
/// Any number of nodes share the work, also nodes with different handlers. A node whose process dies
/// is noticed after its lease, and others take over what it had claimed.
///
/// If it is dropped, its handlers are cancelled, and others take over after its lease. Call
/// [`drain`](Self::drain) to end in order.
#[must_use = "a node that is dropped stops"]
pub struct Node {
    handlers: HandlerSet,
    stop: watch::Sender<Stop>,
    workers: JoinSet<HandedBack>,
    /// The heartbeats and the retention; they end when this is dropped.
    hearts: JoinSet<()>,
    leaving: watch::Sender<bool>,
}

/// Configures a [`Node`].
#[must_use = "a node handles nothing until it is started"]
pub struct NodeBuilder {
    executor: ActionExecutor,
    handlers: Vec<Handler>,
    refused: Option<StartError>,
    settings: Settings,
}

/// What a handler of a node does.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandlerStatus {
    /// The handler.
    pub name: &'static str,
    /// Whether it is paused on this node.
    pub is_paused: bool,
    /// The number of events that it has handled since the node started.
    pub handled: u64,
    /// The number of runs that failed since the node started.
    pub failed: u64,
}

impl NodeBuilder {
    /// Adds a handler with the default options: events of one model in order, retried for a week, or
    /// as the configuration says.
    pub fn handler<H: EventHandler>(self, handler: H) -> Self {
        let options = HandlerOptions::of(self.executor.databases().events_config());
        self.handler_with(handler, options)
    }

    /// Adds a handler.
    pub fn handler_with<H: EventHandler>(mut self, handler: H, options: HandlerOptions) -> Self {
        let names = H::Event::NAMES;
        let is_unknown = |event: &&String| names.iter().all(|known| known.name != **event);
        if let Some(event) = options.only.iter().find(is_unknown) {
            let known: Vec<String> = names.iter().map(|name| format!("`{}`", name.name)).collect();
            self.refused.get_or_insert(StartError::UnknownEvent {
                handler: H::NAME,
                event: event.clone(),
                known: known.join(", "),
            });
        }
        self.handlers.push(Handler::new(handler, options));
        self
    }

    /// Lets the start fail because of an option of a handler, which another crate has checked.
    #[doc(hidden)]
    pub fn refuse_option(
        mut self,
        handler: &'static str,
        option: &'static str,
        why: String,
    ) -> Self {
        self.refused.get_or_insert(StartError::Option { handler, option, why });
        self
    }

    /// Adds an action whose [enqueued](ekbatan_core::action::ActionPlan::enqueue) calls the node runs, with
    /// the default options.
    pub fn action<A: Action + 'static>(self, action: A) -> Self {
        let options = HandlerOptions::of(self.executor.databases().events_config());
        self.action_with(action, options)
    }

    /// Adds an action whose [enqueued](ekbatan_core::action::ActionPlan::enqueue) calls the node runs.
    ///
    /// What operators see of the calls has the name of the action. Calls with one key
    /// [in turn](ekbatan_core::action::EnqueuedCall::in_turn) run one after another unless the options are
    /// [unordered](HandlerOptions::unordered). The age of a call counts from the time when it is due.
    /// `only` and `from_now_on` have no meaning for calls.
    pub fn action_with<A: Action + 'static>(mut self, action: A, options: HandlerOptions) -> Self {
        self.handlers.push(Handler::of_action(action, options));
        self
    }

    /// Adds a relay, which sends events to a message broker. The crate `ekbatan-relay` has them, and what
    /// they promise.
    pub fn relay<R: EventRelay>(mut self, relay: R) -> Self {
        self.handlers.push(Handler::of_relay(relay));
        self
    }

    /// Adds several relays, as those of a configuration.
    pub fn relays<R: EventRelay>(self, relays: impl IntoIterator<Item = R>) -> Self {
        relays.into_iter().fold(self, Self::relay)
    }

    /// Sets a name for logs. It need not be unique.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// Sets the time after which a node that is not heard of loses what it has claimed; 15 s unless
    /// set, at least 1 s. Handlers of a node that was only slow run twice, but what they commit by
    /// [`HandlerContext::finish`](crate::HandlerContext::finish) is there once.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// Sets the pauses between looking for events: the shortest while there are some, and the
    /// longest while there are none; 2 ms and 500 ms unless set. A commit of this process ends the
    /// pause.
    pub fn poll(mut self, shortest: Duration, longest: Duration) -> Self {
        (self.settings.shortest_poll, self.settings.longest_poll) = (shortest, longest);
        self
    }

    /// Sets how many new deliveries of one priority a look claims at most, and how many that wait; 256 unless
    /// set, 16 to 1,000. The handlers share it, with at least 16 for each. With less, the looks of a node that
    /// has much to do are shorter, and there are more of them.
    pub fn claimed_at_once(mut self, deliveries: usize) -> Self {
        self.settings.claimed_at_once = deliveries;
        self
    }

    /// Sets to how many events without deliveries a look gives theirs at most, in one transaction; 2,000
    /// unless set, 1 to 10,000. Such events are those of other programs, and the earlier ones of a new handler.
    pub fn swept_at_once(mut self, events: usize) -> Self {
        self.settings.swept_at_once = events;
        self
    }

    /// Sets whether the nodes of other processes are told of events that this process commits, and
    /// this node hears of theirs; `true` unless set. It shortens the pauses, and nothing relies on it.
    /// On PostgreSQL it takes a session of its own for each shard, which `LISTEN`s; switch it off if
    /// a pooler makes that useless. SQLite is asked whether its file has changed. On MySQL and
    /// MariaDB there is no such signal.
    pub fn doorbell(mut self, doorbell: bool) -> Self {
        self.settings.doorbell = doorbell;
        self
    }

    /// Sets whether the node handles events; `true` unless set. If not, it registers its handlers and
    /// leaves the events to other nodes.
    pub fn handles(mut self, handles: bool) -> Self {
        self.settings.handles = handles;
        self
    }

    /// Sets how often the node reports how far its handlers are, as `tracing` events with the target
    /// `ekbatan_events::gauges`; every minute unless set. The database is asked only if a subscriber
    /// wants them.
    pub fn gauges(mut self, every: Duration) -> Self {
        self.settings.gauges = every;
        self
    }

    /// Lets the node delete what nobody needs any more, on every shard, once in a while. The first
    /// time is by chance. Several nodes may do it: what one has deleted, the others do not find. It replaces
    /// the one of the configuration.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.settings.retention = Some(retention);
        self
    }

    /// Registers the handlers on every shard, and starts.
    pub async fn start(self) -> Result<Node, StartError> {
        let Self { executor, handlers, refused, settings } = self;
        settings.check()?;
        if let Some(error) = refused {
            return Err(error);
        }
        let handlers = HandlerSet::new(handlers)?;
        for handler in handlers.iter() {
            handler.paused.store(!settings.handles, Ordering::Relaxed);
        }
        for handler in handlers.iter().filter(|_| settings.handles) {
            if let Some(relay) = handler.relay() {
                let refused = |source| StartError::Relay { relay: handler.name, source };
                relay.check(RelayTerms::of_lease(settings.lease)).await.map_err(refused)?;
            }
        }
        let databases = executor.databases().clone();
        let hub = executor.deliveries().clone();
        let (stop, stopping) = watch::channel(Stop::No);
        let (leaving, left) = watch::channel(false);
        let (mut workers, mut hearts) = (JoinSet::new(), JoinSet::new());
        for shard in databases.shards() {
            let identifier = shard.identifier();
            let failed = |source| StartError::Shard { shard: identifier, source };
            let clock = databases.clock().clone();
            let registrar = Registrar::new(&databases, &shard);
            let subscriptions = registrar.register(&handlers, clock.now()).await.map_err(failed)?;
            let owned = handlers.owned(&subscriptions);
            hub.set(identifier, Arc::new(subscriptions));
            let joined = Instant::now();
            let joining = Membership::join(&databases, &shard, &settings.name, clock.now());
            let membership = joining.await.map_err(failed)?;
            let (identity, known) = watch::channel(Some(membership.id()));
            let (renewed, alive) =
                Alive::of(Life { node: membership.id(), until: joined + settings.lease });
            let runner = Runner {
                executor: executor.clone(),
                clock,
                shard: shard.clone(),
                deliveries: databases.repository().on_shard(&shard),
                dead_letters: databases.repository().on_shard(&shard),
                remote_calls: databases.repository().on_shard(&shard),
                registrar: registrar.clone(),
                marks: Marks::new(databases.repository().on_shard(&shard)),
                alive: alive.clone(),
            };
            let worker = ShardWorker {
                runner,
                handlers: handlers.clone(),
                hub: hub.clone(),
                registrar: registrar.clone(),
                owner: hub.own(identifier, membership.id(), owned),
                settings: settings.clone(),
                doorbell: NodeDoorbell::join(&shard, &settings, &handlers),
                identity: known,
                alive,
                stop: stopping.clone(),
            };
            workers.spawn(worker.run());
            let shard_of_gauges = shard.clone();
            let heart = Heart {
                databases: databases.clone(),
                shard,
                handlers: handlers.clone(),
                registrar,
                hub: hub.clone(),
                settings: settings.clone(),
                identity,
                alive: renewed,
                leaving: left.clone(),
                fences: FenceTasks::default(),
            };
            hearts.spawn(heart.beat(membership, joined));
            let gauges = Gauges {
                databases: databases.clone(),
                shard: shard_of_gauges,
                handlers: handlers.clone(),
                every: settings.gauges,
                leaving: left.clone(),
            };
            hearts.spawn(gauges.run());
        }
        if let Some(retention) = settings.retention {
            hearts.spawn(retention.run_often(databases, leaving.subscribe()));
        }
        Ok(Node { handlers, stop, workers, hearts, leaving })
    }
}

impl Node {
    /// A node for the calls of an executor. It handles events on all shards of its databases. Its
    /// settings start from `ekbatan.events` of the configuration.
    ///
    /// A node without handlers handles nothing, but lets the commits of its executor deliver to the
    /// handlers of other nodes at once.
    pub fn builder(executor: &ActionExecutor) -> NodeBuilder {
        NodeBuilder {
            executor: executor.clone(),
            handlers: Vec::new(),
            refused: None,
            settings: Settings::new(executor.databases().events_config()),
        }
    }

    /// What the handlers do.
    pub fn handlers(&self) -> Vec<HandlerStatus> {
        let status = |handler: &Arc<Handler>| {
            let Counts { handled, failed } = handler.counts();
            HandlerStatus { name: handler.name, is_paused: handler.is_paused(), handled, failed }
        };
        self.handlers.iter().map(status).collect()
    }

    /// Lets this node claim no more events for a handler. Those that it has claimed are handled.
    /// [`DeliveryOperations::pause`](crate::DeliveryOperations::pause) does it on all nodes.
    /// `false` if it has no handler of this name.
    #[must_use = "`false` means that the node has no handler of this name"]
    pub fn pause(&self, handler: &str) -> bool {
        self.set_paused(handler, true)
    }

    /// Ends a pause. `false` if the node has no handler of this name.
    #[must_use = "`false` means that the node has no handler of this name"]
    pub fn resume(&self, handler: &str) -> bool {
        self.set_paused(handler, false)
    }

    fn set_paused(&self, handler: &str, paused: bool) -> bool {
        let found = self.handlers.get(handler);
        found.inspect(|handler| handler.paused.store(paused, Ordering::Relaxed)).is_some()
    }

    /// Claims nothing more, waits for the handlers that run, for at most `grace`, cancels those that
    /// still run, and gives everything back that is not handled, without counting an attempt. If the database
    /// does not answer, this ends about half a minute after the grace, and others take over.
    ///
    /// A handler that blocks its thread cannot be cancelled. This does not wait for it, and others take its event
    /// over; once they have, its actions are refused. The end of tokio's runtime does wait for it, unless
    /// it is shut down by `Runtime::shutdown_timeout`.
    pub async fn drain(mut self, grace: Duration) -> HandedBack {
        let now = Instant::now();
        // A century, if there is no such time.
        let at = now.checked_add(grace).unwrap_or(now + Duration::from_secs(3_155_760_000));
        self.stop.send_replace(Stop::At(at));
        let mut all = HandedBack::default();
        while let Some(ended) = self.workers.join_next().await {
            all = all.and(ended.unwrap_or_default());
        }
        self.leaving.send_replace(true);
        let ending = async { while self.hearts.join_next().await.is_some() {} };
        if tokio::time::timeout(LONGEST_END, ending).await.is_err() {
            tracing::warn!("what a node did beside its handlers was cut short");
        }
        all
    }

    /// Runs until the process is told to end, by SIGTERM or Ctrl-C, and then [drains](Self::drain). Fails
    /// if the system lets the process not hear of signals.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn run(node: ekbatan_events::Node) -> std::io::Result<()> {
    /// let handed_back = node.run_until_signal(Duration::from_secs(30)).await?;
    /// println!("{} runs were cancelled, other nodes do them", handed_back.cancelled);
    /// # Ok(()) }
    /// ```
    pub async fn run_until_signal(self, grace: Duration) -> io::Result<HandedBack> {
        told_to_end().await?;
        Ok(self.drain(grace).await)
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("handlers", &self.handlers()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for NodeBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeBuilder")
            .field("handlers", &self.handlers.len())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
