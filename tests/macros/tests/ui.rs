//! The errors of the derives, word for word.

#[test]
fn errors_point_at_the_mistake_and_say_how_to_fix_it() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
