//! The conformance suite of brokers is in `suite`.
