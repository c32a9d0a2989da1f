//! Business operations on SQL databases: versioned rows and their events in one durable
//! commit. This crate is the facade; `ekbatan-core` holds what is behind it.
