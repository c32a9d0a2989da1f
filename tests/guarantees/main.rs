//! What must hold whatever happens: many tasks at once, callers that go away, servers and
//! processes that are killed. Each guarantee is shown on every database.

mod calls;
mod cancellation;
mod concurrency;
mod crash;
mod fence;
mod forgotten_locks;
mod harness;
mod lanes;
mod lanes_mysql;
mod process;
mod replicas;
mod round_trips;
mod shards;
mod startup;
#[path = "../../examples/wallet/wallet.rs"]
#[allow(dead_code)] // the example uses what the tests do not
mod wallet;
