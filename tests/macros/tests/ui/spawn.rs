//! A call that is spawned without `async move`.

use ekbatan_core::action::{Action, ActionContext, ActionExecutor};

struct Touch;

impl Action for Touch {
    const NAME: &'static str = "account.touch";
    type Params = Params;
    type Output = ();
    type Error = std::fmt::Error;

    async fn perform(&self, _: &mut ActionContext<'_>, _: &Params) -> Result<(), std::fmt::Error> {
        Ok(())
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Params {}

/// As `tokio::spawn`.
fn spawn<F>(_: F)
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
}

fn spawned(executor: &ActionExecutor) {
    spawn(executor.execute(&Touch, Params {}));
}

fn main() {}
