//! One run of a handler or of a relay, and what becomes of its deliveries.

pub(crate) mod delivery_run;
pub(crate) mod marks;
pub(crate) mod relay_run;
pub(crate) mod unwanted;
