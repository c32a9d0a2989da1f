//! Step 3: describes the configuration as a JSON schema, with which editors complete and check
//! files.

use serde_json::{Map, Value, json};

use super::keys::{Key, Kind, LOCKS, ROOT, SLOTS, of_slot};
use super::spelling::camel;

/// The JSON schema of a configuration file, draft 7, which editors of YAML support best. It has
/// every key in kebab-case and in camelCase.
///
/// `cargo run --example config_schema` prints it; `config/ekbatan.schema.json` is that output.
pub fn json_schema() -> Value {
    let mut definitions = Map::new();
    let either = json!([{ "required": ["sharding"] }, { "required": ["configs"] }]);
    let root = with(section(ROOT, &mut definitions), "oneOf", either);
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Configuration of ekbatan",
        "type": "object",
        "required": ["ekbatan"],
        "properties": { "ekbatan": root },
        "definitions": definitions,
    })
}

fn with(mut schema: Value, name: &str, value: Value) -> Value {
    schema[name] = value;
    schema
}

/// Defines a schema once under a name, and returns a reference to it.
fn defined(name: &str, schema: Value, definitions: &mut Map<String, Value>) -> Value {
    definitions.insert(name.to_owned(), schema);
    json!({ "allOf": [{ "$ref": format!("#/definitions/{name}") }] })
}

fn section(keys: &[Key], definitions: &mut Map<String, Value>) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for key in keys {
        if matches!(key.kind, Kind::Refused(_)) {
            continue;
        }
        let mut about = key.about.to_owned();
        if let Some(default) = key.default {
            about.push_str(&format!(" Default: {default}."));
        }
        let mut schema = kind(&key.kind, definitions);
        if key.kind.container().is_some() {
            schema = defined(key.name, schema, definitions);
        }
        let schema = with(schema, "description", about.into());
        let spelled = spellings(key.name);
        if key.required {
            required.push(any_of(&spelled));
        }
        properties.extend(spelled.into_iter().map(|name| (name, schema.clone())));
    }
    // Locks need no address: they may be in the primary or in the process.
    let has = |name| keys.iter().any(|key| key.name == name);
    if has("jdbc-url") && !has("provider") {
        let mut names = spellings("url");
        names.extend(spellings("jdbc-url"));
        required.push(any_of(&names));
    }
    let schema =
        json!({ "type": "object", "additionalProperties": false, "properties": properties });
    if required.is_empty() { schema } else { with(schema, "allOf", required.into()) }
}

fn kind(kind: &Kind, definitions: &mut Map<String, Value>) -> Value {
    match kind {
        Kind::Text | Kind::Address => json!({ "type": "string", "pattern": r"\S" }),
        Kind::Secret => json!({ "type": "string" }),
        Kind::Texts => {
            let text = json!({ "type": "string", "pattern": r"\S" });
            json!({ "anyOf": [text, { "type": "array", "minItems": 1, "items": text }] })
        }
        Kind::Count { least, most } => {
            or_name(json!({ "type": "integer", "minimum": least, "maximum": most }))
        }
        Kind::Word(words) => or_name(json!({ "enum": words })),
        Kind::Flag => or_name(json!({ "type": "boolean" })),
        Kind::Time { bare_milliseconds, .. } => {
            let span = json!({
                "type": "string",
                "pattern": r"^([0-9]+(\.[0-9]+)? ?(ms|s|m|h|d)|P([0-9.]+D)?(T([0-9.]+H)?([0-9.]+M)?([0-9.]+S)?)?)$",
            });
            or_name(if *bare_milliseconds {
                json!({ "anyOf": [{ "type": "integer", "minimum": 0 }, span] })
            } else {
                span
            })
        }
        Kind::Section(keys) => section(keys, definitions),
        // Never described, so an editor reports the key as unknown.
        Kind::Refused(_) => json!(false),
        Kind::List(keys) => {
            json!({ "type": "array", "minItems": 1, "items": section(keys, definitions) })
        }
        Kind::Slots => {
            let slot = section(of_slot(""), definitions);
            let slot = defined("database", slot, definitions);
            let locks = section(of_slot(LOCKS), definitions);
            let locks = defined("locks", locks, definitions);
            let mut properties = Map::new();
            for (name, about) in SLOTS {
                let keys = if name == LOCKS { &locks } else { &slot };
                let slot = with(keys.clone(), "description", about.into());
                properties.extend(spellings(name).into_iter().map(|name| (name, slot.clone())));
            }
            json!({
                "type": "object",
                "properties": properties,
                "additionalProperties": slot,
                "allOf": [any_of(&spellings("primary-config"))],
            })
        }
    }
}

/// Any value may be a text with `${NAME}`.
fn or_name(schema: Value) -> Value {
    json!({ "anyOf": [schema, { "type": "string", "pattern": r"\$\{" }] })
}

fn spellings(name: &str) -> Vec<String> {
    let mut spellings = vec![name.to_owned(), camel(name)];
    spellings.dedup();
    spellings
}

/// At least one of the names must be present.
fn any_of(names: &[String]) -> Value {
    let each: Vec<Value> = names.iter().map(|name| json!({ "required": [name] })).collect();
    json!({ "anyOf": each })
}
