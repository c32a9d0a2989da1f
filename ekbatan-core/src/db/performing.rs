//! Which action a task performs at present.
//!
//! A call inside `perform`, a transaction, or the write of a repository would commit although the
//! action around it can still be refused, run again, or be dropped. So they are refused. Tasks that
//! `perform` spawns, and effects, are tasks of their own and not covered.

tokio::task_local! {
    static PERFORMING: &'static str;
}

/// Runs the `perform` of an action of this name.
pub(crate) async fn performing<T>(action: &'static str, perform: impl Future<Output = T>) -> T {
    PERFORMING.scope(action, perform).await
}

/// The name of the action that this task performs, if it does.
pub(crate) fn performed_action() -> Option<&'static str> {
    PERFORMING.try_with(|action| *action).ok()
}
