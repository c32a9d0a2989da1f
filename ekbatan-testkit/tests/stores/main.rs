//! Private servers of the lock providers that `scripts/test stores` runs: they start, crash and
//! restart on request, and leave nothing behind.

mod aerospike;
mod hbase;
mod mongodb;
