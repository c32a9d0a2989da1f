//! Where a relay sends events: a text with places for what an event has.

/// The places.
const PLACES: [&str; 3] = ["namespace", "model", "event"];

/// A topic of a relay, in which `{namespace}`, `{model}` and `{event}` stand for those of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicTemplate {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Namespace,
    Model,
    Event,
}

/// Error returned when a topic has a place that no event has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the topic `{topic}` {why}")]
pub struct TopicError {
    topic: String,
    pub(super) why: String,
}

impl Default for TopicTemplate {
    /// `ekbatan.{namespace}.model.{model}`: the topic of the Java framework's convention that keeps the
    /// order of a model.
    fn default() -> Self {
        let text = |text: &str| Part::Text(text.to_owned());
        Self { parts: vec![text("ekbatan."), Part::Namespace, text(".model."), Part::Model] }
    }
}

impl TopicTemplate {
    /// Fails if the topic is blank, or has a place that no event has.
    pub fn parse(topic: &str) -> Result<Self, TopicError> {
        let refuse = |why: String| Err(TopicError { topic: topic.to_owned(), why });
        if topic.trim().is_empty() {
            return refuse("is blank; give a name, in which `{namespace}`, `{model}` and `{event}` stand for those of the event".to_owned());
        }
        let mut parts = Vec::new();
        let mut rest = topic;
        while let Some(at) = rest.find(['{', '}']) {
            let (text, from) = rest.split_at(at);
            parts.push(Part::Text(text.to_owned()));
            let Some((place, after)) = from.strip_prefix('{').and_then(|of| of.split_once('}'))
            else {
                return refuse("has a brace without its other one".to_owned());
            };
            parts.push(match place {
                "namespace" => Part::Namespace,
                "model" => Part::Model,
                "event" => Part::Event,
                other => {
                    let known = PLACES.map(|place| format!("`{{{place}}}`")).join(", ");
                    return refuse(format!("has the place `{{{other}}}`; there are {known}"));
                }
            });
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        parts.retain(|part| *part != Part::Text(String::new()));
        Ok(Self { parts })
    }

    /// The topic of an event.
    pub fn fill(&self, namespace: &str, model: &str, event: &str) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Namespace => namespace.to_owned(),
            Part::Model => model.to_owned(),
            Part::Event => event.to_owned(),
        };
        self.parts.iter().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_with_a_place_that_no_event_has_is_refused() {
        for (topic, why) in [
            ("", "is blank"),
            ("a.{mode}", "has the place `{mode}`; there are `{namespace}`, `{model}`, `{event}`"),
            ("a.{model", "has a brace without its other one"),
            ("a.}", "has a brace without its other one"),
        ] {
            let error = TopicTemplate::parse(topic).unwrap_err().to_string();
            assert!(error.contains(why), "{topic}: {error}");
        }
        let default = TopicTemplate::parse("ekbatan.{namespace}.model.{model}").unwrap();
        assert_eq!(default, TopicTemplate::default());
        assert_eq!(default.fill("a.b", "Wallet", "Opened"), "ekbatan.a.b.model.Wallet");
    }
}
