//! Effects that run after the commit of a group.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ekbatan::action::Outcome;
use ekbatan::prelude::*;
use futures_util::FutureExt;
use futures_util::future::join_all;
use support::TestDatabase;
use support::things::Thing;

use crate::acts::{Act, Gate, Groups, a_thing, act, enqueued, hold, in_queue, touch};

on_every_database! {
    effects_of_a_call_run_in_order_also_for_dropped_calls,
    a_slow_effect_delays_no_other_call_of_the_group,
    an_effect_may_use_the_same_key,
}

type Log = Arc<Mutex<Vec<String>>>;

/// Changes the row, with two effects that write to the log.
fn noted(log: &Log, id: Id<Thing>, name: &'static str) -> Act<Stored<Thing>> {
    let log = log.clone();
    act(move |ctx| {
        let log = log.clone();
        async move {
            let thing = ctx.get(id).await.unwrap();
            for part in ["one", "two"] {
                let log = log.clone();
                ctx.plan().after_commit(name, move |committed| async move {
                    log.lock().unwrap().push(format!("{name} {part} {}", committed.action));
                    Ok::<_, std::io::Error>(())
                });
            }
            Ok(ctx.plan().update(thing.apply(|thing| thing.small += 1)))
        }
        .boxed()
    })
}

async fn effects_of_a_call_run_in_order_also_for_dropped_calls(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let (gate, log) = (Gate::closed(), Log::default());
    let (read, may_go_on) = (Gate::closed(), Gate::closed());
    let acts = [noted(&log, id, "a"), noted(&log, id, "b")];
    let slow = {
        let (read, gate) = (read.clone(), may_go_on.clone());
        act(move |ctx| {
            let (read, gate) = (read.clone(), gate.clone());
            async move {
                let thing = ctx.get(id).await.unwrap();
                read.open();
                gate.pass().await;
                Ok(ctx.plan().update(thing.apply(|thing| thing.small += 1)))
            }
            .boxed()
        })
    };
    let holds = hold(&gate);
    let mut ids = Vec::new();
    let mut calls = vec![enqueued(in_queue(&executor, &holds)).await.map(drop).boxed()];
    for act in &acts {
        let call = in_queue(&executor, act);
        ids.push(call.action_id());
        calls.push(enqueued(call).await.map(drop).boxed());
    }
    let slow = enqueued(in_queue(&executor, &slow)).await;
    gate.open();
    let leaving = async {
        {
            let mut all = join_all(calls);
            tokio::select! {
                _ = &mut all => panic!("the slow one holds the group"),
                () = read.pass() => {}
            }
        } // here both leave, with their parts in the group
        may_go_on.open();
    };
    let (slow, ()) = tokio::join!(slow, leaving);
    assert_eq!(slow.unwrap().version(), 4);
    // The slow call has no effects; it may return before the effects of the others run.
    while log.lock().unwrap().len() < 4 {
        tokio::task::yield_now().await;
    }
    for (name, id) in ["a", "b"].iter().zip(&ids) {
        let of_call: Vec<String> =
            log.lock().unwrap().iter().filter(|line| line.starts_with(name)).cloned().collect();
        assert_eq!(of_call, ["one", "two"].map(|part| format!("{name} {part} {id}")));
    }
    for id in ids {
        assert_eq!(executor.outcome(id).await.unwrap(), Outcome::Committed);
    }
}

/// The effect of the first call waits until all other calls have returned.
async fn a_slow_effect_delays_no_other_call_of_the_group(db: &TestDatabase) {
    let (groups, _counting) = Groups::count();
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let (gate, others_returned, log) = (Gate::closed(), Gate::closed(), Log::default());
    let slow = {
        let others_returned = others_returned.clone();
        act(move |ctx| {
            let others_returned = others_returned.clone();
            async move {
                let thing = ctx.get(id).await.unwrap();
                ctx.plan().after_commit("slow", move |_| async move {
                    others_returned.pass().await;
                    Ok::<_, std::io::Error>(())
                });
                Ok(ctx.plan().update(thing.apply(|thing| thing.small += 1)))
            }
            .boxed()
        })
    };
    let (holds, quick) = (hold(&gate), ["a", "b", "c"].map(|name| noted(&log, id, name)));
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let slow = enqueued(in_queue(&executor, &slow)).await;
    let mut calls = Vec::new();
    for act in &quick {
        calls.push(enqueued(in_queue(&executor, act)).await);
    }
    gate.open();
    let others = async {
        let answers = tokio::time::timeout(Duration::from_secs(60), join_all(calls)).await;
        others_returned.open();
        answers.expect("the other calls wait for an effect that is not theirs")
    };
    let (_, slow, answers) = tokio::join!(holding, slow, others);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(log.lock().unwrap().len(), 6);
    assert_eq!(slow.unwrap().version(), 2);
    assert_eq!(groups.sizes(), [4]);
}

async fn an_effect_may_use_the_same_key(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let executor = db.executor().await;
    let gate = Gate::closed();
    let with_follower = || {
        let executor = executor.clone();
        act(move |ctx| {
            let executor = executor.clone();
            async move {
                let thing = ctx.get(id).await.unwrap();
                ctx.plan().after_commit("follower", move |_| async move {
                    in_queue(&executor, &touch(id)).await.map(drop)
                });
                Ok(ctx.plan().update(thing.apply(|thing| thing.small += 1)))
            }
            .boxed()
        })
    };
    let (holds, first, second) = (hold(&gate), with_follower(), with_follower());
    let holding = enqueued(in_queue(&executor, &holds)).await;
    let calls = vec![
        enqueued(in_queue(&executor, &first)).await,
        enqueued(in_queue(&executor, &second)).await,
    ];
    gate.open();
    let (_, answers) = tokio::join!(holding, join_all(calls));
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    // Also for a call that commits alone.
    in_queue(&executor, &with_follower()).await.unwrap();
    assert_eq!(db.things().get(id).await.unwrap().version(), 7);
    assert_eq!(executor.effect_failures(), 0);
}
