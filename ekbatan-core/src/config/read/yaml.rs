//! Parses a YAML text into values, with the line of each key and of each entry of a list.

use std::collections::BTreeMap;
use std::fmt;

use figment::value::{Dict, Empty, Tag, Value};
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::tree::{kind_of, whole_number};
use crate::config::key_path::KeyPath;

/// The line of each value. One with a key has the line of its key, as its value may begin below it.
pub(super) type Lines = BTreeMap<KeyPath, u64>;

/// A text that is not YAML.
#[derive(Debug)]
pub(super) struct SyntaxError {
    pub(super) line: Option<u64>,
    pub(super) message: String,
}

/// The entries of the top mapping, in the spelling of the text. An empty text has none.
pub(super) fn parse(text: &str) -> Result<(Dict, Lines), SyntaxError> {
    let options = serde_saphyr::options! {
        // A snippet of the text could show a password.
        with_snippet: false,
        // `on` and `no` are texts, as in YAML 1.2.
        strict_booleans: true,
        // The keys need nine levels. In a debug build a level takes 40 KiB of stack, and a thread
        // has 2 MiB.
        budget: serde_saphyr::budget! { max_depth: 24 },
    };
    let mut lines = Lines::new();
    let root = match serde_saphyr::from_str_with_options::<Spanned<Node>>(text, options) {
        Ok(root) => root,
        Err(error) => {
            let location = error.location().filter(|location| location.line() > 0);
            return Err(SyntaxError {
                line: location.map(|location| location.line()),
                message: match error.without_snippet() {
                    serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
                        format!("has the key `{key}` twice in one mapping; remove one of the two")
                    }
                    error => format!("is not YAML: {}", error_kind(error)),
                },
            });
        }
    };
    match value(root.value, &KeyPath::default(), &mut lines) {
        Value::Dict(_, dict) => Ok((dict, lines)),
        Value::Empty(..) => Ok((Dict::new(), lines)),
        other => Err(SyntaxError {
            line: Some(1),
            message: format!(
                "has {} at its top; expected a mapping with the key `ekbatan`",
                kind_of(&other)
            ),
        }),
    }
}

/// The parser's message without the location, which is reported separately.
fn error_kind(error: &serde_saphyr::Error) -> String {
    let text = error.to_string();
    let text = text.lines().next().unwrap_or_default();
    let end = text.find(" at line ").unwrap_or(text.len());
    text[..end].trim_end_matches([',', ' ', '(']).to_owned()
}

enum Node {
    Scalar(Value),
    List(Vec<Spanned<Node>>),
    Map(Vec<(String, u64, Spanned<Node>)>),
}

fn value(node: Node, at: &KeyPath, lines: &mut Lines) -> Value {
    match node {
        Node::Scalar(value) => value,
        Node::List(items) => Value::Array(
            Tag::Default,
            items
                .into_iter()
                .enumerate()
                .map(|(position, item)| {
                    let line = item.referenced.line();
                    located(item, line, at.index(position), lines)
                })
                .collect(),
        ),
        Node::Map(entries) => Value::Dict(
            Tag::Default,
            entries
                .into_iter()
                .map(|(key, line, item)| {
                    let value = located(item, line, at.key(key.clone()), lines);
                    (key, value)
                })
                .collect(),
        ),
    }
}

fn located(node: Spanned<Node>, line: u64, at: KeyPath, lines: &mut Lines) -> Value {
    let value = value(node.value, &at, lines);
    if line > 0 {
        lines.insert(at, line);
    }
    value
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNode)
    }
}

struct AnyNode;

impl<'de> Visitor<'de> for AnyNode {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value")
    }

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Node, E> {
        Ok(Node::Scalar(Value::from(flag)))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Scalar(Value::from(number)))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Scalar(Value::from(number)))
    }

    fn visit_i128<E: de::Error>(self, number: i128) -> Result<Node, E> {
        Ok(Node::Scalar(Value::from(number)))
    }

    fn visit_u128<E: de::Error>(self, number: u128) -> Result<Node, E> {
        Ok(Node::Scalar(Value::from(number)))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Node, E> {
        Ok(Node::Scalar(Value::from(number)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Scalar(Value::from(text)))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Empty(Tag::Default, Empty::Unit)))
    }

    fn visit_none<E: de::Error>(self) -> Result<Node, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Node, D::Error> {
        Node::deserialize(inner)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<Node, D::Error> {
        Node::deserialize(inner)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key::<Spanned<Node>>()? {
            let line = key.referenced.line();
            let value = entries.next_value()?;
            // No key of ours is a list or a mapping. Such a key gets a name that no key has.
            let key = match key.value {
                Node::Scalar(Value::String(_, text)) => text,
                Node::Scalar(Value::Num(_, number)) => {
                    whole_number(number).map_or_else(|| "?".to_owned(), |number| number.to_string())
                }
                Node::Scalar(Value::Bool(_, flag)) => flag.to_string(),
                _ => "?".to_owned(),
            };
            map.push((key, line, value));
        }
        Ok(Node::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_its_line() {
        let (dict, lines) = parse("a: 1\nb:\n  - x: yes\n  - x: '012'\n").unwrap();
        let b = KeyPath::default().key("b");
        assert_eq!(lines[&KeyPath::default().key("a")], 1);
        assert_eq!(lines[&b], 2, "that of the key, not that of the list below it");
        assert_eq!(lines[&b.index(0).key("x")], 3);
        assert_eq!(lines[&b.index(1).key("x")], 4);
        let items = dict["b"].as_array().unwrap();
        assert_eq!(items[0].as_dict().unwrap()["x"].as_str(), Some("yes"));
        assert_eq!(items[1].as_dict().unwrap()["x"].as_str(), Some("012"));
    }

    #[test]
    fn a_syntax_error_has_its_line_and_not_its_text() {
        for text in [
            "a: 1\npassword: \"s3cret\nb: [",
            "password: s3cret: s3cret",
            "a: 1\n  password: [s3cret\n",
            "password: s3cret\npassword: s3cret",
            "password: *s3cret",
            "password: !!int s3cret",
            "s3cret",
            "[s3cret]",
        ] {
            let error = parse(text).unwrap_err();
            assert!(!error.message.contains("s3cret"), "{error:?}");
            assert!(error.line.is_some(), "{error:?}");
        }
    }

    #[test]
    fn a_key_that_stands_twice_is_named() {
        let error = parse("a:\n  b: 1\n  c: 2\n  b: 3\n").unwrap_err();
        assert_eq!(error.line, Some(4));
        assert_eq!(error.message, "has the key `b` twice in one mapping; remove one of the two");
    }

    #[test]
    fn an_empty_text_has_no_values() {
        for text in ["", "# nothing\n", "---\n"] {
            assert!(parse(text).unwrap().0.is_empty());
        }
    }

    #[test]
    fn keys_of_the_application_may_be_of_any_kind() {
        let (dict, _) =
            parse("1: x\ntrue: y\n? [a, b]\n: z\nnull: 3\nt: !custom {a: 1}\n").unwrap();
        assert_eq!(dict["1"].as_str(), Some("x"));
    }
}
