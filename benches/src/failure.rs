//! The error type of the whole program.

/// Any error that ends a measurement early.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
