//! What it takes to hand open descriptors from one process to the next: frames that carry descriptors over a unix
//! socket, a pipe whose end proves that its holder is gone, and a handle to a process that cannot become another's.
//!
//! Knows nothing of what is handed over. There is no raw descriptor in it: what is received is owned from the first
//! moment on, so that whatever goes wrong closes it.

#[doc(hidden)]
pub mod bare;
mod channel;
mod error;
mod frame;
mod liveness;
mod pidfd;

pub use channel::{Channel, MOST_DESCRIPTORS};
pub use error::Error;
pub use frame::{Frame, LARGEST_FRAME};
pub use liveness::{Alive, Witness, liveness};
pub use pidfd::Process;
