//! Copies of a model that answer requests: the half of data parallelism that needs no all-reduce.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::Error;

/// Spreads requests over copies of a model, each on a thread of its own, by how much work they are: a request goes to
/// the replica with the least work before it, not to the one with the fewest requests.
///
/// Requests of one sequence go to one replica, which may keep what it computed for those before.
///
/// ```
/// use annulus_ddp::Replicas;
///
/// // Two "models" that count; a request is a number of tokens.
/// let replicas = Replicas::new(vec![0_u64, 0], |served: &mut u64, tokens: u64| {
///     *served += tokens;
///     *served
/// })?;
/// let long = replicas.submit(1000, 1000, Some(7))?; // sequence 7
/// let short = replicas.submit(10, 10, None)?; // goes to the other one
/// assert_eq!((long.wait()?, short.wait()?), (1000, 10));
/// assert_eq!(replicas.submit(1, 1, Some(7))?.wait()?, 1001); // the same replica again
/// replicas.end_sequence(7);
/// # Ok::<(), annulus_ddp::Error>(())
/// ```
pub struct Replicas<Q, A> {
    senders: Vec<Sender<Request<Q, A>>>,
    load: Arc<Mutex<Load>>,
    threads: Vec<JoinHandle<()>>,
}

/// The answer to a request, which may still be under way.
#[must_use = "the answer comes with wait()"]
pub struct Answer<A> {
    receiver: Receiver<Result<A, Error>>,
    replica: usize,
}

struct Request<Q, A> {
    question: Q,
    work: u64,
    answer: Sender<Result<A, Error>>,
}

struct Load {
    replicas: Vec<ReplicaLoad>,
    /// Where each sequence is.
    sequences: HashMap<u64, usize>,
}

#[derive(Clone, Copy, Default)]
struct ReplicaLoad {
    /// Estimated work of the requests that have not been answered.
    work: u64,
    /// Requests so far.
    requests: u64,
    /// Whether its model panicked.
    broken: bool,
}

impl<Q: Send + 'static, A: Send + 'static> Replicas<Q, A> {
    /// Gives each model a thread, on which `serve` answers its requests, one after another.
    ///
    /// # Errors
    /// [`Error::Replicas`] without a model; [`Error::Thread`].
    pub fn new<M: Send + 'static>(
        models: Vec<M>,
        serve: impl Fn(&mut M, Q) -> A + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        if models.is_empty() {
            return Err(Error::Replicas {
                problem: "there are none: give at least one model".to_owned(),
            });
        }
        let replicas = vec![ReplicaLoad::default(); models.len()];
        let load = Arc::new(Mutex::new(Load { replicas, sequences: HashMap::new() }));
        let serve = Arc::new(serve);
        let mut all = Self { senders: Vec::new(), load, threads: Vec::new() };
        for (index, mut model) in models.into_iter().enumerate() {
            let (sender, requests) = channel::<Request<Q, A>>();
            let (load, serve) = (all.load.clone(), serve.clone());
            let work = move || {
                for Request { question, work, answer } in requests {
                    let outcome =
                        panic::catch_unwind(AssertUnwindSafe(|| serve(&mut model, question)));
                    {
                        let replica = &mut lock(&load).replicas[index];
                        replica.work -= work;
                        replica.broken |= outcome.is_err();
                    }
                    // Nobody may be waiting for it any longer.
                    let _ = answer.send(outcome.map_err(|panic| panicked(index, panic.as_ref())));
                }
            };
            let name = format!("replica-{index}");
            let thread = thread::Builder::new().name(name).spawn(work);
            all.threads.push(thread.map_err(|error| Error::Thread(Arc::new(error)))?);
            all.senders.push(sender);
        }
        Ok(all)
    }

    /// Sends a request to a replica. `work` is an estimate in any unit, such as tokens. Does not block.
    ///
    /// A request of a `sequence` goes where its first one went; that is forgotten at
    /// [`end_sequence`](Self::end_sequence). If that replica is broken, it goes to another one.
    ///
    /// # Errors
    /// [`Error::Replicas`] when all are broken.
    pub fn submit(
        &self,
        question: Q,
        work: u64,
        sequence: Option<u64>,
    ) -> Result<Answer<A>, Error> {
        let (answer, receiver) = channel();
        let replica = {
            let mut load = lock(&self.load);
            let known = sequence.and_then(|sequence| load.sequences.get(&sequence).copied());
            let replica =
                known.filter(|&known| !load.replicas[known].broken).or_else(|| load.least());
            let replica =
                replica.ok_or_else(|| Error::Replicas { problem: "all are broken".to_owned() })?;
            if let Some(sequence) = sequence {
                load.sequences.insert(sequence, replica);
            }
            load.replicas[replica].work += work;
            load.replicas[replica].requests += 1;
            replica
        };
        let request = Request { question, work, answer };
        if self.senders[replica].send(request).is_err() {
            return Err(Error::Replicas { problem: format!("replica {replica} has ended") });
        }
        Ok(Answer { receiver, replica })
    }

    /// Forgets where a sequence is.
    pub fn end_sequence(&self, sequence: u64) {
        lock(&self.load).sequences.remove(&sequence);
    }

    /// For each replica, the estimated work of the requests that are not answered yet, and the number of all requests.
    pub fn load(&self) -> Vec<(u64, u64)> {
        lock(&self.load).replicas.iter().map(|replica| (replica.work, replica.requests)).collect()
    }
}

impl<A> Answer<A> {
    /// Which replica has the request.
    pub fn replica(&self) -> usize {
        self.replica
    }

    /// Blocks until the answer is there.
    ///
    /// # Errors
    /// [`Error::Replicas`] when the model panicked over this request.
    pub fn wait(self) -> Result<A, Error> {
        let lost = |_| Error::Replicas { problem: format!("replica {} has ended", self.replica) };
        self.receiver.recv().map_err(lost)?
    }
}

impl Load {
    /// The replica with the least work, and of those the one with the fewest requests.
    fn least(&self) -> Option<usize> {
        let whole = self.replicas.iter().enumerate().filter(|(_, replica)| !replica.broken);
        whole.min_by_key(|(_, replica)| (replica.work, replica.requests)).map(|(index, _)| index)
    }
}

impl<Q, A> Drop for Replicas<Q, A> {
    /// Answers what has been submitted, and ends the threads.
    fn drop(&mut self) {
        self.senders.clear();
        for thread in self.threads.drain(..) {
            // Panics of models have been caught.
            let _ = thread.join();
        }
    }
}

fn panicked(replica: usize, panic: &(dyn Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("without a message");
    Error::Replicas { problem: format!("the model of replica {replica} panicked: {text}") }
}

fn lock(load: &Mutex<Load>) -> MutexGuard<'_, Load> {
    load.lock().unwrap_or_else(PoisonError::into_inner)
}
