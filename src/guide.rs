//! Has every snippet of the README and of the guide compiled, and run where it can be.

macro_rules! pages {
    ($($name:ident = $path:literal),* $(,)?) => {$(
        #[doc = include_str!($path)]
        mod $name {}
    )*};
}

pages! {
    readme = "../README.md",
    getting_started = "../docs/src/getting-started.md",
    models = "../docs/src/models.md",
    actions = "../docs/src/actions.md",
    executing = "../docs/src/executing.md",
    repositories = "../docs/src/repositories.md",
    transactions = "../docs/src/transactions.md",
    commit = "../docs/src/commit.md",
    outbox = "../docs/src/outbox.md",
    migrations = "../docs/src/migrations.md",
    sharding = "../docs/src/sharding.md",
    locks = "../docs/src/locks.md",
    contention = "../docs/src/contention.md",
    configuration = "../docs/src/configuration.md",
    operations = "../docs/src/operations.md",
    testing = "../docs/src/testing.md",
    coming_from_java = "../docs/src/coming-from-java.md",
}
