//! The flags of nccl-tests, as far as they make sense on host memory.

use annulus::{Rank, Transport};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::Test;
use super::number::{Number, Operator};
use crate::launch::MOST_RANKS;
use crate::size::parse_bytes;

/// What one run of a benchmark measures.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) min_bytes: usize,
    pub(super) max_bytes: usize,
    pub(super) step: Step,
    pub(super) iterations: usize,
    pub(super) warmup: usize,
    /// Operations per group.
    pub(super) aggregate: usize,
    pub(super) cycles: usize,
    pub(super) check: usize,
    pub(super) operators: Vec<Operator>,
    pub(super) numbers: Vec<Number>,
    pub(super) root: Roots,
    pub(super) blocking: Blocking,
    pub(super) average: Average,
    pub(super) per_iteration: bool,
    /// Samples that the statistics of single iterations leave out.
    pub(super) skip: usize,
    pub(super) unalign: usize,
    pub(super) timeout: Option<u64>,
    pub(super) timestamps: bool,
    pub(super) memory: bool,
    /// Buffers from `Communicator::alloc`.
    pub(super) register: bool,
    pub(super) output: Option<String>,
    pub(super) plot: Option<String>,
    /// As many ranks as were asked for, unless a launcher decides.
    pub(super) ranks: Option<usize>,
    /// Whether the ranks are threads of this process.
    pub(super) threads: bool,
    pub(super) transport: Option<String>,
    pub(super) algorithm: Option<String>,
}

/// From one size to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Bytes(usize),
    Factor(usize),
}

/// Which ranks are roots in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Roots {
    One(Rank),
    All,
}

/// Where ranks wait for each other between operations: `-z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocking {
    /// Around the whole loop.
    Loop,
    /// Around each operation.
    Each,
    /// Nowhere within the measurement.
    Never,
}

/// How the ranks' times become one: `-a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Average {
    Rank0,
    Mean,
    Least,
    Most,
}

/// A flag of nccl-tests that means nothing here.
struct Refused {
    name: &'static str,
    short: char,
    /// The value that asks for nothing but what happens anyway, if there is one: scripts often give it.
    neutral: Option<&'static str>,
    reason: &'static str,
}

const fn refused(
    name: &'static str,
    short: char,
    neutral: Option<&'static str>,
    reason: &'static str,
) -> Refused {
    Refused { name, short, neutral, reason }
}

const REFUSED: [Refused; 8] = [
    refused("ngpus", 'g', Some("1"), "ranks have host memory and no GPU: use --ranks"),
    refused("stream_null", 'y', Some("0"), "calls on host memory have no stream"),
    refused("cudagraph", 'G', Some("0"), "calls on host memory cannot be captured in a graph"),
    refused("cta_policy", 'x', None, "there are no thread blocks on host memory"),
    refused("device_implementation", 'D', Some("0"), "there is no device code on host memory"),
    refused("device_cta_count", 'V', None, "there are no thread blocks on host memory"),
    refused("report_cputime", 'C', Some("0"), "a blocking call's CPU time is its time"),
    refused("parallel_init", 'p', Some("1"), "ranks always start in parallel"),
];

impl Options {
    /// Reads the command line of `test`; prints help or what is wrong with it and exits if it asks for that.
    pub(super) fn parse(test: Test, arguments: impl Iterator<Item = String>) -> Self {
        let mut command = command(test);
        let matches =
            command.try_get_matches_from_mut(arguments).unwrap_or_else(|error| error.exit());
        Self::from_matches(test, &matches).unwrap_or_else(|problem| {
            command.error(clap::error::ErrorKind::ValueValidation, problem).exit()
        })
    }

    fn from_matches(test: Test, matches: &ArgMatches) -> Result<Self, String> {
        for Refused { name, short, neutral, reason } in REFUSED {
            let given = matches.get_one::<String>(name).map(String::as_str);
            if given.is_some() && given != neutral {
                return Err(format!("-{short}, --{name} makes no sense here: {reason}"));
            }
        }
        let number = |name: &str| *matches.get_one::<usize>(name).expect("has a default");
        let text = |name: &str| matches.get_one::<String>(name).cloned();
        let step = match (matches.get_one::<usize>("stepfactor"), number("stepbytes")) {
            (Some(0 | 1), _) => return Err("-f, --stepfactor must be at least 2".to_owned()),
            (Some(&factor), _) => Step::Factor(factor),
            (None, _)
                if matches.value_source("stepbytes")
                    != Some(clap::parser::ValueSource::CommandLine) =>
            {
                Step::Factor(2)
            }
            (None, 0) => return Err("-i, --stepbytes must be at least 1".to_owned()),
            (None, bytes) => Step::Bytes(bytes),
        };
        let (min_bytes, max_bytes) = (number("minbytes"), number("maxbytes"));
        if min_bytes > max_bytes {
            return Err(format!(
                "-b, --minbytes {min_bytes} is more than -e, --maxbytes {max_bytes}"
            ));
        }
        let (iterations, aggregate) = (number("iters"), number("agg_iters"));
        if iterations == 0 || aggregate == 0 {
            return Err("-n, --iters and -m, --agg_iters must be at least 1".to_owned());
        }
        let threads = matches.get_one::<usize>("nthreads").copied();
        let ranks = matches.get_one::<usize>("ranks").copied();
        if ranks.is_some() && threads.is_some() && ranks != threads {
            return Err("--ranks and -t, --nthreads both say how many ranks there are".to_owned());
        }
        let ranks = threads.or(ranks);
        match ranks {
            Some(0) => return Err("--ranks and -t, --nthreads must be at least 1".to_owned()),
            Some(ranks) if ranks > MOST_RANKS => {
                return Err(format!(
                    "{ranks} ranks are more than a host can carry: at most {MOST_RANKS}"
                ));
            }
            _ => {}
        }
        let (per_iteration, skip) = (matches.get_flag("per_iter_timing"), number("per_iter_skip"));
        if skip > 0 && !per_iteration {
            return Err(
                "-K, --per_iter_skip leaves out samples of -I, which is not given".to_owned()
            );
        }
        if per_iteration && skip >= iterations {
            return Err(format!(
                "-K, --per_iter_skip {skip} leaves nothing of -n, --iters {iterations}"
            ));
        }
        let blocking = match number("blocking") {
            0 => Blocking::Loop,
            1 => Blocking::Each,
            2 | 3 => Blocking::Never,
            other => return Err(format!("-z, --blocking is {other}: use 0, 1, 2 or 3")),
        };
        let average = match number("average") {
            0 => Average::Rank0,
            1 => Average::Mean,
            2 => Average::Least,
            3 => Average::Most,
            other => {
                return Err(format!(
                    "-a, --average is {other}: use 0 (rank 0), 1 (mean), 2 (min) or 3 (max)"
                ));
            }
        };
        let register = match number("local_register") {
            0 => false,
            1 | 2 => true,
            other => return Err(format!("-R, --local_register is {other}: use 0, 1 or 2")),
        };
        if text("root").is_some() && !test.rooted() {
            return Err(format!("-r, --root makes no sense here: {} has no root", test.title()));
        }
        if text("op").is_some() && !test.reduces() {
            return Err(format!("-o, --op makes no sense here: {} combines nothing", test.title()));
        }
        let root = match text("root").as_deref() {
            None => Roots::One(0),
            Some("-1" | "all") => Roots::All,
            Some(rank) => Roots::One(
                rank.parse().map_err(|_| format!("-r, --root is {rank}: use a rank or all"))?,
            ),
        };
        let operators = match text("op").as_deref() {
            _ if !test.reduces() => vec![Operator::None],
            Some("all") => Operator::ALL.to_vec(),
            Some(name) => vec![Operator::from_name(name).ok_or_else(|| {
                format!("-o, --op is {name}: use sum, prod, min, max, avg, mulsum or all")
            })?],
            None => vec![Operator::Sum],
        };
        let numbers = match text("datatype").as_deref() {
            Some("all") => Number::ALL.to_vec(),
            Some(name) => vec![Number::from_name(name).ok_or_else(|| {
                let known: Vec<_> = Number::ALL.iter().map(|number| number.name()).collect();
                format!("-d, --datatype is {name}: use {} or all", known.join(", "))
            })?],
            None => vec![Number::F32],
        };
        let switch = |name: &str, short: char| match number(name) {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(format!("-{short}, --{name} is {other}: use 0 or 1")),
        };
        let (timestamps, memory) = (switch("report_timestamps", 'S')?, switch("memory", 'M')?);
        let (output, plot) = (text("output_file"), text("plot"));
        if number("run_cycles") == 0 && (output.is_some() || plot.is_some()) {
            return Err(
                "-N, --run_cycles 0 never ends, and so never writes -J or --plot".to_owned()
            );
        }
        let transport = text("transport");
        if let Some(name) = &transport
            && Transport::from_name(name).is_none()
        {
            return Err(format!("--transport is {name}: use auto, proc, shm or tcp"));
        }
        Ok(Self {
            min_bytes,
            max_bytes,
            step,
            iterations,
            warmup: number("warmup_iters"),
            aggregate,
            cycles: number("run_cycles"),
            check: number("check"),
            operators,
            numbers,
            root,
            blocking,
            average,
            per_iteration,
            skip,
            unalign: number("unalign"),
            timeout: matches.get_one::<u64>("timeout").copied(),
            timestamps,
            memory,
            register,
            output,
            plot,
            ranks,
            threads: threads.is_some() || transport.as_deref() == Some("proc"),
            transport,
            algorithm: text("algo"),
        })
    }

    /// All sizes, in bytes.
    pub(super) fn sizes(&self) -> impl Iterator<Item = usize> {
        let step = self.step;
        let next = move |&bytes: &usize| match step {
            Step::Bytes(step) => bytes.checked_add(step),
            // From nothing, multiplication leads nowhere.
            Step::Factor(factor) => bytes.max(1).checked_mul(factor),
        };
        let max = self.max_bytes;
        std::iter::successors(Some(self.min_bytes), next).take_while(move |&bytes| bytes <= max)
    }
}

fn command(test: Test) -> Command {
    let flag = |name: &'static str, short: Option<char>, help: &'static str| {
        let arg = Arg::new(name).long(name).help(help);
        match short {
            Some(short) => arg.short(short),
            None => arg,
        }
    };
    let count = |name, short, default: &'static str, help| {
        flag(name, Some(short), help).value_parser(value_parser!(usize)).default_value(default)
    };
    let size = |name, short, default: &'static str, help| {
        flag(name, Some(short), help).value_parser(parse_bytes).default_value(default)
    };
    let mut command = Command::new(test.program())
        .about(format!(
            "Measures {} between the ranks that a launcher started, or between --ranks processes of this host",
            test.title()
        ))
        .version(env!("CARGO_PKG_VERSION"))
        // -V is another flag of nccl-tests.
        .disable_version_flag(true)
        .arg(flag("version", None, "print the version").action(ArgAction::Version))
        .arg(size("minbytes", 'b', "8", "smallest size in bytes, with K, M or G for powers of 1024"))
        .arg(size("maxbytes", 'e', "64M", "largest size"))
        .arg(size("stepbytes", 'i', "1M", "size to add from row to row"))
        .arg(
            flag("stepfactor", Some('f'), "factor from row to row [default: 2, unless -i is given]")
                .value_parser(value_parser!(usize)),
        )
        .arg(count("iters", 'n', "20", "iterations that are timed together"))
        .arg(count("warmup_iters", 'w', "5", "iterations before them"))
        .arg(count("agg_iters", 'm', "1", "operations per iteration, one after another"))
        .arg(count("run_cycles", 'N', "1", "how often to go through all sizes, 0 for ever"))
        .arg(count("check", 'c', "1", "iterations whose result is checked, 0 for none"))
        .arg(flag("op", Some('o'), "sum, prod, min, max, avg, mulsum or all [default: sum]"))
        .arg(flag("datatype", Some('d'), "an element type or all [default: float]"))
        .arg(
            flag("root", Some('r'), "the root's rank, or all [default: 0]")
                .allow_negative_numbers(true),
        )
        .arg(count("blocking", 'z', "0", "barriers: 0 around the loop, 1 around each iteration, 2 or 3 none"))
        .arg(count("average", 'a', "1", "which time is reported: 0 rank 0's, 1 the mean, 2 the least, 3 the most"))
        .arg(
            flag("per_iter_timing", Some('I'), "time each iteration, and add columns for them")
                .action(ArgAction::SetTrue),
        )
        .arg(count("per_iter_skip", 'K', "0", "first samples that -I leaves out"))
        .arg(count("unalign", 'u', "0", "index of the buffers' first element, to misalign them"))
        .arg(
            flag("timeout", Some('T'), "seconds after which an operation fails")
                .value_parser(value_parser!(u64).range(1..)),
        )
        .arg(count("report_timestamps", 'S', "0", "1: end each row with the time (UTC)"))
        .arg(count("memory", 'M', "0", "1: print the memory that each rank uses"))
        .arg(count("local_register", 'R', "0", "1 or 2: buffers that peers read in place (Communicator::alloc)"))
        .arg(flag("output_file", Some('J'), "also write the results to this file: as JSON if it ends in .json, else as printed"))
        .arg(
            flag("ranks", None, "processes to start, unless a launcher has started this one [default: 2]")
                .value_parser(value_parser!(usize)),
        )
        .arg(
            flag("nthreads", Some('t'), "ranks to run as threads of one process, instead of --ranks")
                .value_parser(value_parser!(usize)),
        )
        .arg(flag("transport", None, "auto, proc (threads of one process), shm or tcp [default: auto]"))
        .arg(flag("algo", None, "the algorithm, like ANNULUS_ALGO"))
        .arg(flag("plot", None, "draw bus bandwidth over size into this SVG file"));
    for Refused { name, short, .. } in REFUSED {
        command = command.arg(flag(name, Some(short), "").hide(true));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let arguments = std::iter::once("all_reduce_perf").chain(arguments.iter().copied());
        let matches = command(Test::AllReduce)
            .try_get_matches_from(arguments)
            .map_err(|error| error.to_string())?;
        Options::from_matches(Test::AllReduce, &matches)
    }

    #[test]
    fn sizes_grow_by_factor_or_step() {
        let sizes =
            |arguments: &[&str]| parse(arguments).expect("valid").sizes().collect::<Vec<_>>();
        assert_eq!(sizes(&["-b", "8", "-e", "64"]), [8, 16, 32, 64]);
        assert_eq!(sizes(&["-b", "1K", "-e", "1M", "-f", "32"]), [1 << 10, 1 << 15, 1 << 20]);
        assert_eq!(sizes(&["-b", "0", "-e", "2K", "-i", "1K"]), [0, 1024, 2048]);
        assert_eq!(sizes(&["-b", "4M", "-e", "4M"]), [4 << 20]);
        assert_eq!(sizes(&["-b", "0", "-e", "4"]), [0, 2, 4]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_reason() {
        let refused = |arguments: &[&str]| parse(arguments).expect_err("refused");
        assert!(refused(&["-g", "2"]).contains("--ngpus makes no sense here"));
        assert!(refused(&["-G", "1"]).contains("graph"));
        assert!(refused(&["-x", "0"]).contains("thread blocks"));
        assert!(parse(&["-g", "1", "-G", "0", "-p", "1"]).is_ok(), "what happens anyway");
        assert!(refused(&["-b", "2M", "-e", "1M"]).contains("more than"));
        assert!(refused(&["-o", "xor"]).contains("use sum, prod"));
        assert!(refused(&["-d", "quad"]).contains("bfloat16"));
        assert!(refused(&["-b", "x"]).contains("such as 8, 64K"));
        assert!(refused(&["-e", "99999999999G"]).contains("address"));
        assert!(refused(&["--ranks", "0"]).contains("at least 1"));
        assert!(refused(&["--ranks", "1000000"]).contains("at most"));
        assert!(refused(&["--ranks", "3", "-t", "2"]).contains("both"));
        assert!(refused(&["-r", "0"]).contains("no root"));
        assert!(refused(&["-K", "1"]).contains("not given"));
        assert!(refused(&["-I", "-K", "20"]).contains("nothing"));
        assert!(refused(&["--bogus"]).contains("unexpected argument"));
    }
}
