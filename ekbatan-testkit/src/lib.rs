//! Test tools for ekbatan and its users: real servers, a network that counts and fails on
//! demand, and futures that are dropped at a chosen point.
//!
//! - [`postgres`]: private PostgreSQL servers. A test can kill and restart them. They are
//!   removed with the test process, however it ends.
//! - [`mysql`]: the same for MySQL and MariaDB.
//! - [`redis`]: the same for Redis.
//! - [`etcd`]: the same for etcd.
//! - [`hbase`]: the same for HBase.
//! - [`ferretdb`]: the same for FerretDB, which speaks the protocol of MongoDB.
//! - [`aerospike`]: the same for Aerospike, if the environment names one.
//! - [`kafka`], [`nats`] and [`rabbitmq`]: the same for Kafka, NATS and RabbitMQ.
//! - [`sqlite`]: a temporary SQLite database file.
//! - [`proxy`]: a TCP proxy that counts round trips, delays, stalls and cuts.
//! - [`cancel`]: drops a future after a given number of polls.
//! - `locks`, with the feature `locks`: the conformance suite of lock backends.
//!
//! Invariants: a test starts what it needs, and everything that it started is removed
//! afterwards. No wait has a fixed length: each waits for a condition, with a deadline
//! that only a broken machine reaches. Servers need Linux.

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]

pub mod aerospike;
pub mod cancel;
mod database_url;
pub mod etcd;
pub mod ferretdb;
mod front;
pub mod hbase;
pub mod kafka;
#[cfg(feature = "locks")]
pub mod locks;
#[cfg(feature = "mysql")]
pub mod mysql;
pub mod nats;
pub mod postgres;
pub mod proxy;
pub mod rabbitmq;
pub mod redis;
mod server;
pub mod sqlite;

pub use aerospike::{AerospikeServer, AerospikeServerBuilder};
pub use cancel::{Dropped, drop_at_poll};
pub use etcd::{EtcdServer, EtcdServerBuilder};
pub use ferretdb::{FerretDbServer, FerretDbServerBuilder};
pub use hbase::{HBaseRows, HBaseServer, HBaseServerBuilder};
pub use kafka::{KafkaServer, KafkaServerBuilder};
#[cfg(feature = "mysql")]
pub use mysql::{MariaDbServer, MariaDbServerBuilder, MySqlServer, MySqlServerBuilder};
pub use nats::{NatsServer, NatsServerBuilder};
pub use postgres::{PostgresServer, PostgresServerBuilder};
pub use proxy::Proxy;
pub use rabbitmq::{RabbitMqServer, RabbitMqServerBuilder};
pub use redis::{RedisServer, RedisServerBuilder};
pub use server::ServerError;
pub use sqlite::TempSqlite;

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
