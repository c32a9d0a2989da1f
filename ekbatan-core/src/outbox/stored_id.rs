//! The ids of events as they are stored. Where UUIDs are texts, as on SQLite and MySQL, another program may
//! have written any text.

use uuid::Uuid;

use crate::db::{Arg, ColumnInfo, Database, TableInfo};
use crate::domain::{ColumnDef, Value, ValueType};

/// The id of a stored event, which a walk over events goes on behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredId {
    /// A UUID.
    Uuid(Uuid),
    /// Another text. A condition on UUIDs does not find the row.
    Other(String),
}

impl StoredId {
    /// How ids are read: as bytes where they are texts, because the id of another program need not be a UUID.
    pub(crate) fn column(events: &TableInfo) -> ColumnDef {
        let is_text = events.columns.first().is_some_and(are_texts);
        ColumnDef::new("id", if is_text { ValueType::Bytes } else { ValueType::Uuid })
    }

    /// What was read so.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        match value {
            Value::Uuid(id) => Some(Self::Uuid(*id)),
            Value::Bytes(text) => match uuid_of(text) {
                Some(id) => Some(Self::Uuid(id)),
                None => String::from_utf8(text.clone()).ok().map(Self::Other),
            },
            _ => None,
        }
    }

    pub(crate) fn uuid(&self) -> Option<Uuid> {
        if let Self::Uuid(id) = self { Some(*id) } else { None }
    }

    pub(crate) fn arg(&self) -> Arg {
        match self {
            Self::Uuid(id) => Arg::One(ValueType::Uuid, Value::Uuid(*id)),
            Self::Other(text) => Arg::One(ValueType::Text, Value::Text(text.clone())),
        }
    }

    /// A condition that ends a walk behind the last text, or nothing. SQLite stores blobs in a column of texts,
    /// too, and sorts them behind all texts. None of them is an id.
    pub(crate) fn without_blobs(database: &Database) -> &'static str {
        if database.driver.capabilities().single_writer { " AND id < x''" } else { "" }
    }
}

/// Whether the UUIDs of a column are texts.
pub(crate) fn are_texts(column: &ColumnInfo) -> bool {
    ["text", "char(36)"].iter().any(|ty| column.db_type.eq_ignore_ascii_case(ty))
}

/// The UUID that a text is. `None` also if it is spelt otherwise than it is looked for.
pub(crate) fn uuid_of(text: &[u8]) -> Option<Uuid> {
    Uuid::try_parse_ascii(text).ok().filter(|id| id.to_string().as_bytes() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_canonical_text_is_a_uuid() {
        let id = Uuid::now_v7();
        let read = |text: &str| StoredId::read(&Value::Bytes(text.into()));
        assert_eq!(read(&id.to_string()), Some(StoredId::Uuid(id)));
        assert_eq!(StoredId::read(&Value::Uuid(id)), Some(StoredId::Uuid(id)));
        for text in [&*id.simple().to_string(), &*format!("{{{id}}}"), "import-1", ""] {
            assert_eq!(read(text), Some(StoredId::Other(text.to_owned())));
        }
        let capitals = "0198C0DE-0000-7000-8000-000000000ABC";
        assert_eq!(read(capitals), Some(StoredId::Other(capitals.to_owned())));
    }
}
