//! Errors of `derive(Field)`.

use ekbatan_macros::Field;

#[derive(Field)]
enum Currency {
    Euro,
    #[field(name = "EURO")]
    AlsoEuro,
    Other(String),
}

#[derive(Field)]
struct Money {
    amount: i64,
    currency: String,
}

#[derive(Field)]
struct Nothing;

#[derive(Field)]
#[field(name = "cents")]
struct Cents(i64);

#[derive(Field)]
struct Wrapped<T>(T);

#[derive(Field)]
#[field(name = "x")]
enum Attributed {
    Open,
}

fn main() {}
