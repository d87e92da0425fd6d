//! The one thread of a process that looks after its control connections.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

/// Something with a descriptor to watch.
pub(super) trait Source: Send + Sync {
    /// The descriptor can be read or written, or is broken. Runs on the reactor's thread: it must not block.
    /// `false`: it need not be watched any more.
    fn ready(&self) -> bool;
}

/// Something to do later.
pub(super) trait Timer: Send + Sync {
    /// The time has come. Runs on the reactor's thread: it must not block.
    fn expired(&self);
}

/// The thread, as long as somebody holds this.
#[derive(Debug)]
pub(super) struct Reactor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

struct Shared {
    epoll: OwnedFd,
    wake: OwnedFd,
    stopping: AtomicBool,
    next: AtomicU64,
    sources: Mutex<HashMap<u64, Arc<dyn Source>>>,
    timers: Mutex<BTreeMap<(Instant, u64), Weak<dyn Timer>>>,
}

/// Names a timer that has been set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Appointment(Instant, u64);

/// Names a watched source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Token(u64);

const WAKE: u64 = 0;

impl Reactor {
    /// The one of this process; started if there is none now.
    pub(super) fn shared() -> io::Result<Arc<Self>> {
        static CURRENT: Mutex<Weak<Reactor>> = Mutex::new(Weak::new());
        let mut current = lock(&CURRENT);
        if let Some(reactor) = current.upgrade()
            // A forked child has its parent's memory but not its threads.
            && reactor.process == std::process::id()
        {
            return Ok(reactor);
        }
        let reactor = Arc::new(Self::start()?);
        *current = Arc::downgrade(&reactor);
        Ok(reactor)
    }

    fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stopping: AtomicBool::new(false),
            next: AtomicU64::new(WAKE + 1),
            sources: Mutex::default(),
            timers: Mutex::default(),
        });
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&shared.epoll, &shared.wake, data, epoll::EventFlags::IN)?;
        let thread = std::thread::Builder::new().name("annulus-control".into()).spawn({
            let shared = shared.clone();
            move || shared.run()
        })?;
        Ok(Self { shared, thread: Some(thread), process: std::process::id() })
    }

    /// Watches `fd`, which belongs to `source` and stays open until it is [removed](Self::remove), for bytes to read.
    pub(super) fn watch(&self, fd: BorrowedFd<'_>, source: Arc<dyn Source>) -> io::Result<Token> {
        let token = self.shared.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.shared.sources).insert(token, source);
        let data = epoll::EventData::new_u64(token);
        if let Err(error) = epoll::add(&self.shared.epoll, fd, data, epoll::EventFlags::IN) {
            lock(&self.shared.sources).remove(&token);
            return Err(error.into());
        }
        Ok(Token(token))
    }

    /// Whether to wake up when `fd` can be written too.
    pub(super) fn want_write(&self, fd: BorrowedFd<'_>, token: Token, wanted: bool) {
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, wanted);
        let data = epoll::EventData::new_u64(token.0);
        // Fails only when it is watched no more.
        let _ = epoll::modify(&self.shared.epoll, fd, data, flags);
    }

    /// Watches `fd` no more. The source may still be in its last [`Source::ready`].
    pub(super) fn remove(&self, fd: BorrowedFd<'_>, token: Token) {
        let _ = epoll::delete(&self.shared.epoll, fd);
        let source = lock(&self.shared.sources).remove(&token.0);
        drop(source); // with the lock released: it may own anything
    }

    /// Calls `timer` at `time`, if it is still there.
    pub(super) fn call_at(&self, time: Instant, timer: Weak<dyn Timer>) -> Appointment {
        let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let mut timers = lock(&self.shared.timers);
        timers.insert((time, number), timer);
        let first = timers.first_key_value().is_some_and(|(key, _)| *key == (time, number));
        drop(timers);
        if first {
            self.shared.wake();
        }
        Appointment(time, number)
    }

    /// Forgets a timer that [`call_at`](Self::call_at) has set; one that is being called is called to its end.
    pub(super) fn cancel(&self, appointment: Appointment) {
        let forgotten = lock(&self.shared.timers).remove(&(appointment.0, appointment.1));
        drop(forgotten); // with the lock released
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.process != std::process::id() {
            // Forked: the thread is the parent's.
            return;
        }
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.wake();
        // What the thread itself drops last cannot wait for it.
        if thread.thread().id() != std::thread::current().id() {
            // The thread catches panics of sources and timers, so there is no result to look at.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut events = Vec::with_capacity(64);
        while !self.stopping.load(Ordering::Acquire) {
            events.clear();
            let timeout = self.time_to_next_timer();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // Cannot happen with a valid descriptor; should it, do not spin.
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => {
                        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
                    }
                    token => self.serve(token),
                }
            }
            self.run_timers();
        }
    }

    fn serve(&self, token: u64) {
        // It may have been removed after the event was reported.
        let Some(source) = lock(&self.sources).get(&token).cloned() else { return };
        // Whoever panics loses its own connection and nobody else's.
        let keep = catch_unwind(AssertUnwindSafe(|| source.ready())).unwrap_or(false);
        if !keep {
            let removed = lock(&self.sources).remove(&token);
            // Closing the descriptor, which the last reference does, ends the watch.
            drop(removed);
        }
    }

    fn run_timers(&self) {
        let now = Instant::now();
        loop {
            let mut timers = lock(&self.timers);
            let Some(first) = timers.first_entry().filter(|first| first.key().0 <= now) else {
                return;
            };
            let timer = first.remove();
            drop(timers);
            if let Some(timer) = timer.upgrade() {
                let _ = catch_unwind(AssertUnwindSafe(|| timer.expired()));
            }
        }
    }

    fn time_to_next_timer(&self) -> Option<Timespec> {
        let next = lock(&self.timers).first_key_value().map(|(key, _)| key.0)?;
        // Rounded up, so that the timer is due when epoll returns.
        let left = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Timespec::try_from(left).ok()
    }

    fn wake(&self) {
        // The counter cannot overflow: the thread resets it.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("sources", &lock(&self.sources).len())
            .finish_non_exhaustive()
    }
}

/// Locks, whatever a panicking thread has left: all states here are valid between any two statements.
pub(super) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
