//! Deserializes a [`Stored`], and rejects what no row can be.
//!
//! Invariant: the version is at least 1 and has a next one, and a model has both dates, in microseconds.

use chrono::{DateTime, Datelike, Timelike, Utc};
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::stored::Dates;
use super::{Entity, Stored};

/// The fields as [`Stored`] serializes them.
#[derive(Deserialize)]
struct Parts<T> {
    value: T,
    version: i64,
    created_date: Option<DateTime<Utc>>,
    updated_date: Option<DateTime<Utc>>,
}

impl<'de, T: Entity + Deserialize<'de>> Deserialize<'de> for Stored<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parts = Parts::<T>::deserialize(deserializer)?;
        let version = match (T::TABLE.version, parts.version) {
            (Some(_), version) if !(1..i64::MAX).contains(&version) => {
                return Err(D::Error::custom(format!(
                    "no stored `{}` has the version {version}; versions start at 1 and never reach the largest integer",
                    T::TABLE.model
                )));
            }
            (_, version) => version,
        };
        let dates = match T::TABLE.dates {
            Some(_) => Some(Dates {
                created: checked::<T, D::Error>("created_date", parts.created_date)?,
                updated: checked::<T, D::Error>("updated_date", parts.updated_date)?,
            }),
            None => None,
        };
        Ok(Self { value: parts.value, version, dates })
    }
}

fn checked<T: Entity, E: Error>(
    name: &'static str,
    date: Option<DateTime<Utc>>,
) -> Result<DateTime<Utc>, E> {
    let date = date.ok_or_else(|| E::missing_field(name))?;
    // Every database stores these dates, and none stores more digits.
    if (1..=9999).contains(&date.year()) && date.nanosecond() % 1_000 == 0 {
        Ok(date)
    } else {
        Err(E::custom(format!(
            "no stored `{}` has the {name} {date:?}; dates have microseconds and years of four digits",
            T::TABLE.model
        )))
    }
}
