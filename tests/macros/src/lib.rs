//! The examples in the documentation of the derives, run as documentation of this crate.

#[cfg(doctest)]
#[doc = include_str!("../../../ekbatan-macros/docs/model.md")]
pub struct Model;

#[cfg(doctest)]
#[doc = include_str!("../../../ekbatan-macros/docs/entity.md")]
pub struct Entity;

#[cfg(doctest)]
#[doc = include_str!("../../../ekbatan-macros/docs/event.md")]
pub struct Event;

#[cfg(doctest)]
#[doc = include_str!("../../../ekbatan-macros/docs/state.md")]
pub struct State;

#[cfg(doctest)]
#[doc = include_str!("../../../ekbatan-macros/docs/field.md")]
pub struct Field;
