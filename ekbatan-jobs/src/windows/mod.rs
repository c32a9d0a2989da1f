//! Windows: rows that come in until a cutoff, and are then batched completely.
//!
//! What always holds:
//! - A row is in a batch of its window, once, or it was refused; never both.
//! - Nothing is batched before the cutoff of the window, by the clock of the database.
//! - An action that adds a row locks nothing, and waits for nobody.
//!
//! A window is a row of `eventlog.windows`. An action that adds rows reads it, and its commit compares
//! what it has read ([`Window::admits`]). Closing takes three steps, and each can be repeated:
//!
//! 1. A job, once in the cluster, commits that the window is closing. From then on every action that
//!    adds a row finds that.
//! 2. A handler of this event passes the barrier: every transaction has ended that had found the window
//!    open. So the rows are complete. It takes them into batches, in chunks. Each chunk is an action of the
//!    application, and counts in the row of the window with its commit.
//! 3. The last commit closes the window, and says how many chunks and rows there are.
//!
//! Each window is handled by itself: one whose batches fail is tried again, and delays no other.
//!
//! The files from bottom to top: `window`, the row; `cutoffs`, when windows close; `series`, what an application writes;
//! `open_window`, `begin_closing`, `chunk` and `finish_closing`, the actions; `close_windows`, the job;
//! `finish_windows`, the handler; `front`.

mod begin_closing;
mod chunk;
mod close_windows;
mod cutoffs;
mod error;
mod finish_closing;
mod finish_windows;
mod front;
mod open_window;
mod series;
mod window;

pub use cutoffs::{Cutoff, Cutoffs, CutoffsError};
pub use error::WindowError;
pub use front::Windows;
pub use series::{ChunkOutcome, OfWindow, WindowChunk, WindowSeries};
pub use window::{NewWindow, Window, WindowEvent, WindowState};
