//! The flight recorder: the last operations of each rank of each communicator, readable while the process hangs.
//!
//! Each rank of each communicator has a page of memory (see `format.rs`), to which it writes as it goes:
//!
//! * **Every operation** is counted when it has ended: one store. That is all for a call that repeats the last one, is
//!   small, and does not wait long. Its start is noted once it is seen to wait, and that of other calls at once: until then the rank
//!   seems to be in none.
//! * **A record** says which call it was, from which operation to which it was repeated, when the first started, and when the
//!   clock was last looked at. The last [`MAX_RECORDS`] records are kept, so that at least as many operations are
//!   known.
//! * **Calls of 64 KiB or more**, calls that had to wait for longer than about ten microseconds, and sends and receives, have a record each
//!   with their own start and end. The start of a call that waits, if it repeats the last one, is when it was first seen to wait: some
//!   microseconds late.
//! * **The clock** is looked at for each new record, at the end of a call that has a record of its own, and after
//!   up to 256 repetitions: the faster they follow each other, the more rarely. Of the last of many small calls is known only that it
//!   ended after the last look.
//! * A rank that waits for longer than 20 ms, more in large worlds, also notes for whom.
//!
//! The pages lie in one anonymous file of the process, named `annulus-flight`, so that `annulus status` can read them through
//! `/proc/PID/fd` without the help of a process that hangs or is stopped. Where the system gives no such file, they lie in
//! ordinary memory, and only the process itself can tell. A world of one records nothing.

#[doc(hidden)]
pub mod bench;
mod clock;
mod dump;
mod file;
mod format;
mod merge;
mod page;
mod process;
mod record;
mod recorder;

pub use dump::{Dump, DumpError};
pub use format::{FormatError, MAX_RECORDS, read_records};
pub use merge::{Divergence, Merged};
pub use process::{ProcessError, of_process};
pub use record::{FlightRecord, Operation, Outcome};

pub(crate) use dump::dump_on_signal;
pub(crate) use merge::{ranges, same_call};
pub(crate) use page::Page;
pub(crate) use record::short;
pub(crate) use recorder::Recorder;
