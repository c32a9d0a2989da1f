//! The errors of the derives, word for word, and inputs that compile.

#[test]
fn errors_point_at_the_mistake_and_say_how_to_fix_it() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/fail/*.rs");
}
