//! A rank in a process of its own, which says lines of numbers when asked.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A rank failed.
    #[error(transparent)]
    Rank(#[from] annulus::Error),
    /// The system failed.
    #[error(transparent)]
    System(#[from] io::Error),
    /// A rank's process failed.
    #[error("rank {rank} says {said:?}")]
    Process {
        /// The rank.
        rank: usize,
        /// Its last line.
        said: String,
    },
    /// A rank did not fail as it should have.
    #[error("rank {rank} should have failed otherwise: {outcome}")]
    Outcome {
        /// The rank.
        rank: usize,
        /// What became of its call.
        outcome: String,
    },
}

/// A rank's process, which is killed when this is dropped.
pub(crate) struct RankProcess {
    rank: usize,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl RankProcess {
    /// Starts `program` with `arguments`, the rank and the number of ranks.
    pub(crate) fn start(
        rank: usize,
        ranks: usize,
        program: &Path,
        arguments: &[&str],
    ) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments).args([rank.to_string(), ranks.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        let input = child.stdin.take().ok_or_else(broken)?;
        let output = BufReader::new(child.stdout.take().ok_or_else(broken)?);
        Ok(Self { rank, child, input, output })
    }

    /// Writes to its standard input.
    pub(crate) fn tell(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.input.write_all(bytes)
    }

    /// The numbers of its next line. Blocks.
    pub(crate) fn hear<const N: usize>(&mut self) -> Result<[f64; N], MeasureError> {
        let mut said = String::new();
        self.output.read_line(&mut said)?;
        let numbers: Result<Vec<f64>, _> = said.split_whitespace().map(str::parse).collect();
        // The end of its output is no line.
        match numbers.ok().filter(|_| said.ends_with('\n')).map(TryInto::try_into) {
            Some(Ok(numbers)) => Ok(numbers),
            _ => Err(MeasureError::Process { rank: self.rank, said }),
        }
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
