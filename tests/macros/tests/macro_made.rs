//! A row whose fields a macro generates.

// The rows are public so that no field counts as unused.
#![allow(missing_docs)]

use ekbatan_core::domain::{Entity, Id};
use ekbatan_macros::{Entity, Event, Model, State};
use serde::{Deserialize, Serialize};

macro_rules! row {
    ($row:ident, $table:literal, $($field:ident: $ty:ty),*) => {
        #[derive(Clone, Entity)]
        #[entity(table = $table)]
        pub struct $row {
            pub id: Id<$row>,
            $(pub $field: $ty,)*
            pub state: Life,
        }
    };
}

macro_rules! model {
    ($model:ident, $table:literal, $event:ty, $column:literal, $field:ident: $ty:ty) => {
        #[derive(Clone, Model)]
        #[model(table = $table, event = $event, name = "Model")]
        pub struct $model {
            pub id: Id<$model>,
            #[column(name = $column, json)]
            pub $field: $ty,
            pub state: Life,
        }
    };
    ($model:ident of $event:path) => {
        #[derive(Clone, Model)]
        #[model(table = "models", event = $event)]
        pub struct $model {
            pub id: Id<$model>,
            pub state: Life,
        }
    };
}

#[derive(Clone, Serialize, Deserialize, Event)]
pub enum Change {
    #[event(name = "Made")]
    Made,
}

#[derive(Clone, State)]
pub enum Life {
    Active,
}

row!(Point, "points", x: i32, y: Option<i32>);
model!(Chart, "charts", Change, "shown_points", points: Option<Vec<i32>>);
model!(Plain of Change);

#[test]
fn a_macro_can_make_a_row() {
    assert_eq!(Point::TABLE.user_columns().len(), 4);
    let _ = (Point::X, Point::Y);
}

#[test]
fn a_macro_can_make_a_model() {
    assert_eq!((Chart::TABLE.name, Plain::TABLE.name), ("charts", "models"));
    let points = &Chart::TABLE.user_columns()[1];
    assert_eq!(points.name, "shown_points");
    assert!(points.nullable, "an optional value as JSON is null without it");
}
