//! Calls with a deadline of their own.

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Communicator, Shared};

/// A communicator whose calls have another timeout than its own: see [`Communicator::with_timeout`].
pub struct WithTimeout<'comm> {
    comm: Communicator,
    owner: PhantomData<&'comm Communicator>,
}

impl Communicator {
    /// The same communicator, through which calls wait for at most `timeout`: blocking and started ones, groups, sends and
    /// receives. Calls through it and through the communicator itself are in one order, like all calls of a communicator. What
    /// is split off it has the settings' timeout.
    ///
    /// It costs some 100 ns to make: keep it for calls that are made often.
    ///
    /// ```
    /// # use annulus::{Communicator, ReduceOp};
    /// # let comm = Communicator::local(1)?.remove(0);
    /// let impatient = comm.with_timeout(std::time::Duration::from_secs(2));
    /// impatient.all_reduce(&mut [1.0_f32], ReduceOp::Sum)?;
    /// # Ok::<(), annulus::Error>(())
    /// ```
    pub fn with_timeout(&self, timeout: Duration) -> WithTimeout<'_> {
        let shared = Arc::new(Shared { timeout, ..(*self.shared).clone() });
        let queue = self.queue.on_behalf_of(shared.clone());
        let comm = Self { shared, engine: self.engine.clone(), queue, is_view: true };
        WithTimeout { comm, owner: PhantomData }
    }
}

impl Deref for WithTimeout<'_> {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        &self.comm
    }
}

impl Shared {
    /// When a connection that is begun now must be there.
    pub(super) fn connected_by(&self) -> Instant {
        const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
        let patience = self.config.connect_timeout.unwrap_or(self.timeout).min(self.timeout);
        Instant::now() + patience.min(LONGEST)
    }
}
