//! Why something failed, as text that can be stored.

use std::any::Any;
use std::error::Error;
use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use ekbatan_core::__private::with_causes;

/// The longest error that is stored, in characters.
const LONGEST: usize = 2_000;

/// An error and its causes.
pub fn of_error(error: &(dyn Error + Send + Sync + 'static)) -> String {
    // A text of the application, which may panic.
    let text = std::panic::catch_unwind(AssertUnwindSafe(|| with_causes(error)));
    shorten(&text.unwrap_or_else(|_| "an error that cannot be shown".to_owned()))
}

/// The message of a panic.
pub fn of_panic(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    shorten(&format!("panicked: {}", text.unwrap_or("no text")))
}

/// Stored of a delivery whose node was lost.
const LOST_NODE: &str = "the node that had it was lost";

/// That the node of a delivery was lost, and how the last run failed before.
pub fn of_lost_node(last: Option<&str>) -> String {
    match last {
        None => LOST_NODE.to_owned(),
        Some(last) if is_of_lost_node(last) => last.to_owned(),
        Some(last) => shorten(&format!("{LOST_NODE}; before: {last}")),
    }
}

/// Whether the last failure is that the node was lost. The run may have been what ended it.
pub fn is_of_lost_node(last: &str) -> bool {
    last.starts_with(LOST_NODE)
}

/// What a future returns within this time, or why it returns nothing.
pub async fn within<T, E: Display>(
    longest: Duration,
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match tokio::time::timeout(longest, future).await {
        Ok(returned) => returned.map_err(|error| error.to_string()),
        Err(_) => Err(format!("it was not done within {longest:?}")),
    }
}

/// Not too long, and without what no database stores.
pub fn shorten(text: &str) -> String {
    text.chars().filter(|character| *character != '\0').take(LONGEST).collect()
}
