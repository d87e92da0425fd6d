//! What can go wrong, as values.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use annulus::{DataType, Rank};

/// Why data-parallel training cannot go on as asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A collective failed. Where the communicator is broken, every later step fails too.
    #[error(transparent)]
    Communication(#[from] annulus::Error),
    /// There is nothing to train.
    #[error(
        "DistributedDataParallel is not needed: the model doesn't have any parameter that requires a gradient"
    )]
    NoParameters,
    /// A parameter's gradient has a type that cannot be averaged.
    #[error(
        "parameter `{name}` is {dtype}: gradients are f16, bf16, f32 or f64; freeze it if it is not trained"
    )]
    ParameterType {
        /// The parameter.
        name: String,
        /// Its type.
        dtype: DataType,
    },
    /// Two parameters have one name.
    #[error("two parameters are called `{name}`: give each its own name")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// The ranks do not train the same model with the same settings. Every rank gets this error.
    #[error(
        "DDP expects the same model across all ranks, with the same settings: {}",
        list(differences)
    )]
    ModelsDiffer {
        /// What each differing rank has, beside what rank 0 has there: the first differences of each.
        differences: Vec<Complaint>,
    },
    /// A step cannot be taken. Every rank gets this error, and no rank may use the step's gradients; the next
    /// step may succeed.
    #[error("step {step}: {}", list(complaints))]
    Step {
        /// The step, from 0.
        step: u64,
        /// What is wrong, by rank.
        complaints: Vec<Complaint>,
    },
    /// There is no such parameter.
    #[error("there is no parameter {index}: the model has {count}")]
    NoSuchParameter {
        /// The index that was given.
        index: usize,
        /// The number of parameters.
        count: usize,
    },
    /// A gradient is not what its parameter needs.
    #[error(
        "the gradient of `{name}` is {got_count} elements of {got}, but the parameter has {count} of {dtype}"
    )]
    Gradient {
        /// The parameter.
        name: String,
        /// Its type.
        dtype: DataType,
        /// Its number of elements.
        count: usize,
        /// The gradient's type.
        got: DataType,
        /// The gradient's number of elements.
        got_count: usize,
    },
    /// A frozen parameter has no gradient.
    #[error(
        "`{name}` does not require a gradient, but got one: construct the model without freezing it"
    )]
    Frozen {
        /// The parameter.
        name: String,
    },
    /// A gradient came a second time within one backward pass.
    #[error(
        "expected to mark a variable ready only once: parameter `{name}` at index {index} has been marked as ready twice in step {step}; a parameter that is used twice reports the sum of its gradients, once"
    )]
    ReadyTwice {
        /// The parameter.
        name: String,
        /// Its index.
        index: usize,
        /// The step.
        step: u64,
    },
    /// A gradient, or the end of a backward pass, came outside of a backward pass.
    #[error("no backward pass is open: call begin first")]
    NotBegun,
    /// A backward pass began before the last one was finished.
    #[error(
        "expected to have finished reduction in the prior iteration before starting a new one: step {step} still lacks {missing}; call finish after each backward pass"
    )]
    NotFinished {
        /// The unfinished step.
        step: u64,
        /// The parameters whose gradients have not come.
        missing: String,
    },
    /// Averaging over samples needs their number.
    #[error(
        "gradients are averaged over samples: say how many this rank's batch has (0 is allowed)"
    )]
    SamplesUnknown,
    /// There is no such rank.
    #[error("rank {rank} is out of range: there are ranks 0..{world}")]
    Rank {
        /// The rank that was given.
        rank: usize,
        /// The number of ranks.
        world: usize,
    },
    /// Ranks add different metrics. Every rank gets this error.
    #[error(
        "rank {rank} has {count} metrics, rank 0 has {expected}, or their names or order differ; here they are: {ours}"
    )]
    Metrics {
        /// The first rank that differs from rank 0.
        rank: Rank,
        /// How many metrics it has.
        count: usize,
        /// How many rank 0 has.
        expected: usize,
        /// This rank's names.
        ours: String,
    },
    /// A part of a sharded optimizer's state is with a rank that has no input any longer. Every other rank gets this
    /// error.
    #[error(
        "rank {rank} has joined, and does not step its part of the parameters any longer: with a sharded optimizer all ranks take equally many steps (DistributedSampler, or Shard with Tail::Drop)"
    )]
    Joined {
        /// The first such rank.
        rank: Rank,
    },
    /// A file cannot be read or written, or does not hold what it should. Where ranks read or write together, every
    /// rank gets this error.
    #[error("{path}: {problem}")]
    File {
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// candle refused an operation.
    #[cfg(feature = "candle")]
    #[error("candle: {0}")]
    Candle(Arc<candle_core::Error>),
    /// The ranks' weights are not the same bits. Every rank gets this error.
    #[error(
        "rank {rank} has other weights than rank 0: all ranks must step by the same gradients with the same optimizer"
    )]
    WeightsDiffer {
        /// The first rank that differs from rank 0.
        rank: Rank,
    },
    /// A setting makes no sense.
    #[error("{setting}: {problem}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// A request to [`Replicas`](crate::Replicas) has no answer.
    #[error("replicas: {problem}")]
    Replicas {
        /// Why.
        problem: String,
    },
    /// The system refused a thread.
    #[error("cannot start a thread: {0}")]
    Thread(Arc<std::io::Error>),
    /// A hook, or the reducer itself, panicked while it reduced a bucket; its message was printed.
    #[error("reducing bucket {bucket} panicked: the reducer cannot be used any longer")]
    Panicked {
        /// The bucket.
        bucket: usize,
    },
}

impl Error {
    pub(crate) fn file(path: &Path, problem: impl fmt::Display) -> Self {
        Self::File { path: path.display().to_string(), problem: problem.to_string() }
    }

    /// A file that another rank could not read or write.
    pub(crate) fn refused(path: &Path, complaints: &[Complaint]) -> Self {
        Self::file(path, list(complaints))
    }
}

/// What one rank says is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// Who says so.
    pub rank: Rank,
    /// What it says.
    pub message: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}: {}", self.rank, self.message)
    }
}

fn list(complaints: &[Complaint]) -> String {
    complaints.iter().map(Complaint::to_string).collect::<Vec<_>>().join("; ")
}
