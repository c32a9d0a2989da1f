//! A row whose fields a macro generates.

// The rows are public so that no field counts as unused.
#![allow(missing_docs)]

use ekbatan_core::domain::{Entity, Id};
use ekbatan_macros::{Entity, State};

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

#[derive(Clone, State)]
pub enum Life {
    Active,
}

row!(Point, "points", x: i32, y: Option<i32>);

#[test]
fn a_macro_can_make_a_row() {
    assert_eq!(Point::TABLE.user_columns().len(), 4);
    let _ = (Point::X, Point::Y);
}
