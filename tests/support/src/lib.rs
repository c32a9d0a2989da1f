//! Shared parts of the integration tests.
//!
//! - [`Dialect`] names the databases that the tests run on, and [`on_every_database!`] declares a
//!   test once for each of them. [`test_matrix!`] does the same for any other list of cases.
//! - [`ScratchDatabase`] is an empty database, read and written with plain SQL.
//!   [`TestDatabase`] is one with the tables of a [`Domain`] and an executor for it.
//! - [`wallet`] and [`things`] are the domains that several suites use, and
//!   [`InterruptedDeposit`] is a deposit that a test interrupts.
//! - [`Recorder`] records the spans and events of one test.
//! - [`soak`] says how many rounds a long test runs.
//! - [`ThreadGate`] keeps a task from leaving its thread.
//! - [`until`] waits for a condition that another task brings about.
//! - [`worker_process`] runs the test binary as processes that a test kills and stops.
//! - [`seed`] is where a test at random gets its choices from.
//!
//! Invariant: a test shares no database with another test. Database servers are shared; each
//! test gets a database of its own on them.

mod clock;
mod dialect;
mod domain;
mod interrupted_deposit;
mod matrix;
mod plain_connection;
mod recorder;
mod scratch;
pub mod seed;
pub mod soak;
#[allow(missing_docs)]
pub mod things;
mod thread_gate;
mod wait;
pub mod worker_process;

/// The wallet of the example: a model, its events and two actions.
#[allow(missing_docs)]
#[path = "../../../examples/wallet/wallet.rs"]
pub mod wallet;

pub use clock::{TestClock, instant, stored_instant};
pub use dialect::Dialect;
pub use domain::{Domain, TestDatabase, WALLETS};
pub use interrupted_deposit::InterruptedDeposit;
pub use plain_connection::{PlainConnection, TextRow};
pub use recorder::{Recorded, Recorder, RecorderGuard};
pub use scratch::ScratchDatabase;
pub use thread_gate::{ClosedGate, ThreadGate};
pub use wait::{connected, until};
