//! What the derives refuse, word for word, and what they accept.

#[test]
fn wrong_use_is_told_where_it_is_and_how_to_mend_it() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/fail/*.rs");
}
