//! What an error says together with its causes.

use std::error::Error;

/// The text of an error and of its causes. A cause that a text before it repeats is left out.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::FieldError;
    use crate::repository::ReadError;

    #[derive(Debug, thiserror::Error)]
    #[error("the mail was not sent")]
    struct NotSent(#[source] ReadError);

    #[test]
    fn causes_follow_and_none_is_said_twice() {
        let source = FieldError::new("it is no number").at("amount");
        // The text of a `ReadError` has that of its cause.
        let error = NotSent(ReadError::Row { model: "Mail", id: "7".to_owned(), source });
        assert_eq!(
            with_causes(&error),
            "the mail was not sent: Mail 7: column `amount`: it is no number"
        );
    }
}
