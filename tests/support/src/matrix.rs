//! The macros that declare one test for each database, lock provider or layout of shards.

/// Declares each test once for each case, in a module that is named after the case.
///
/// The attribute and the closure apply to every test: the closure turns the case into the
/// arguments of the test.
///
/// ```ignore
/// test_matrix! {
///     #[tokio::test]
///     |dialect| &TestDatabase::start(&THINGS, dialect).await;
///     [sqlite = Dialect::Sqlite, postgres = Dialect::Postgres]
///     [a_test, another_test]
/// }
/// ```
#[macro_export]
macro_rules! test_matrix {
    (
        #[$test_attribute:meta]
        |$case:ident| $($argument:expr),+;
        [$($module:ident = $value:expr),+ $(,)?]
        $tests:tt
    ) => {
        $crate::test_matrix! {
            @cases #[$test_attribute] |$case| ($($argument),+) [$($module = $value),+] $tests
        }
    };
    (
        @cases #[$test_attribute:meta] |$case:ident| $arguments:tt
        [$($module:ident = $value:expr),+] $tests:tt
    ) => {
        $($crate::test_matrix! {
            @case #[$test_attribute] |$case| $arguments $module = $value; $tests
        })+
    };
    (
        @case #[$test_attribute:meta] |$case:ident| $arguments:tt
        $module:ident = $value:expr; [$($test:ident),* $(,)?]
    ) => {
        mod $module {
            $(
                #[$test_attribute]
                async fn $test() {
                    $crate::Recorder::install();
                    let $case = $value;
                    super::$test $arguments.await;
                }
            )*
        }
    };
}

/// Declares each test once for each database, or only for those that `only` names.
///
/// A suite wraps this macro in one that fixes the attribute and the arguments of its tests:
///
/// ```ignore
/// macro_rules! on_every_database {
///     ($($tests:tt)*) => {
///         support::on_every_database! {
///             #[tokio::test]
///             |dialect| &TestDatabase::start(&THINGS, dialect).await;
///             $($tests)*
///         }
///     };
/// }
///
/// on_every_database! { a_test, another_test }
/// on_every_database! { only postgres: a_third_test }
/// on_every_database! { only mysql and mariadb: a_fourth_test }
/// ```
///
/// A test of a policy that does not depend on the database runs on SQLite only. It may stand
/// beside tests that run on every database, because its module has a name of its own:
///
/// ```ignore
/// on_every_database! { on_sqlite_only: a_test_of_a_policy }
/// ```
#[macro_export]
macro_rules! on_every_database {
    (
        #[$test_attribute:meta] |$case:ident| $($argument:expr),+;
        only $($dialect:ident)and+: $($tests:tt)*
    ) => {
        $crate::test_matrix! {
            #[$test_attribute]
            |$case| $($argument),+;
            [$($dialect = $crate::on_every_database!(@value $dialect)),+]
            [$($tests)*]
        }
    };
    (
        #[$test_attribute:meta] |$case:ident| $($argument:expr),+;
        on_sqlite_only: $($tests:tt)*
    ) => {
        $crate::test_matrix! {
            #[$test_attribute]
            |$case| $($argument),+;
            [on_sqlite_only = $crate::Dialect::Sqlite]
            [$($tests)*]
        }
    };
    (@value sqlite) => { $crate::Dialect::Sqlite };
    (@value postgres) => { $crate::Dialect::Postgres };
    (@value mysql) => { $crate::Dialect::MySql };
    (@value mariadb) => { $crate::Dialect::MariaDb };
    (#[$test_attribute:meta] |$case:ident| $($argument:expr),+; $($tests:tt)*) => {
        $crate::on_every_database! {
            #[$test_attribute]
            |$case| $($argument),+;
            only sqlite and postgres and mysql and mariadb: $($tests)*
        }
    };
}
