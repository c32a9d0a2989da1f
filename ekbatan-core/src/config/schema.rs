//! The schema by which editors complete and check configuration files, printed from the
//! table of keys.

use serde_json::{Map, Value, json};

use super::keys::{Key, Kind, ROOT, SLOTS};
use super::spelling::camel;

/// The schema of a configuration file: JSON Schema, draft 7, which editors of YAML know
/// best. It knows each key in kebab-case and in camelCase.
///
/// `config/ekbatan.schema.json` is this; `cargo run --example config_schema` prints it.
pub fn json_schema() -> Value {
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Configuration of ekbatan",
        "type": "object",
        "required": ["ekbatan"],
        "properties": { "ekbatan": section(ROOT, true) },
    })
}

fn section(keys: &[Key], root: bool) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for key in keys {
        let mut schema = kind(&key.kind);
        if let Some(object) = schema.as_object_mut() {
            let mut about = key.about.to_owned();
            if let Some(default) = key.default {
                about.push_str(&format!(" Default: {default}."));
            }
            object.insert("description".to_owned(), about.into());
        }
        let spelled = spellings(key.name);
        if key.required {
            required.push(any_of(&spelled));
        }
        for name in spelled {
            properties.insert(name, schema.clone());
        }
    }
    let mut schema =
        json!({ "type": "object", "additionalProperties": false, "properties": properties });
    if root {
        schema["oneOf"] = json!([{ "required": ["sharding"] }, { "required": ["configs"] }]);
    }
    if keys.iter().any(|key| key.name == "jdbc-url") {
        let mut names = spellings("url");
        names.extend(spellings("jdbc-url"));
        required.push(any_of(&names));
    }
    if !required.is_empty() {
        schema["allOf"] = required.into();
    }
    schema
}

fn kind(kind: &Kind) -> Value {
    // A value may always be a name that the environment fills.
    let or_name =
        |schema: Value| json!({ "anyOf": [schema, { "type": "string", "pattern": r"\$\{" }] });
    match kind {
        Kind::Text | Kind::Address => json!({ "type": "string", "pattern": r"\S" }),
        Kind::Secret => json!({ "type": "string" }),
        Kind::Count { least, most } if *most >= u64::from(u32::MAX) => {
            or_name(json!({ "type": "integer", "minimum": least }))
        }
        Kind::Count { least, most } => {
            or_name(json!({ "type": "integer", "minimum": least, "maximum": most }))
        }
        Kind::Flag => or_name(json!({ "type": "boolean" })),
        Kind::Word(words) => or_name(json!({ "enum": words })),
        Kind::Time { bare_milliseconds } => {
            let span = json!({
                "type": "string",
                "pattern": r"^([0-9]+(\.[0-9]+)? ?(ms|s|m|h|d)|P([0-9.]+D)?(T([0-9.]+H)?([0-9.]+M)?([0-9.]+S)?)?)$",
            });
            match bare_milliseconds {
                true => json!({ "anyOf": [{ "type": "integer", "minimum": 0 }, or_name(span)] }),
                false => or_name(span),
            }
        }
        Kind::Section(keys) => section(keys, false),
        Kind::List(keys) => {
            json!({ "type": "array", "minItems": 1, "items": section(keys, false) })
        }
        Kind::Slots(keys) => {
            let slot = section(keys, false);
            let mut properties = Map::new();
            for (name, about) in SLOTS {
                for name in spellings(name) {
                    let mut schema = slot.clone();
                    schema["description"] = about.into();
                    properties.insert(name, schema);
                }
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

fn spellings(name: &str) -> Vec<String> {
    let mut spellings = vec![name.to_owned(), camel(name)];
    spellings.dedup();
    spellings
}

/// At least one of the names is there.
fn any_of(names: &[String]) -> Value {
    let each: Vec<Value> = names.iter().map(|name| json!({ "required": [name] })).collect();
    json!({ "anyOf": each })
}
