//! Models of the framework's protocols, and the search that checks them in every state that they
//! can reach.
//!
//! A model is small: few callers, short terms, a network that holds a few messages. Within these
//! bounds the search leaves nothing out: every order of steps, every loss, delay and crash. What
//! the models leave out is said at each of them. They are not the code; a test of the code shows
//! that the code does what its model does.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod deliveries;
mod fairness;
pub mod hand_over;
mod search;

pub use search::{Explored, Fairness, Machine, Trace};
