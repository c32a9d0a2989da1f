//! A row whose fields a macro generates.

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

fn main() {
    assert_eq!(Point::TABLE.user_columns().len(), 4);
    let _ = (Point::X, Point::Y);
}
