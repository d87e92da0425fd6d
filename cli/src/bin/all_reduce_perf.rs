//! Measures all-reduce, with the flags and the output of nccl-tests.

fn main() -> std::process::ExitCode {
    annulus_cli::perf::main(annulus_cli::perf::Test::AllReduce)
}
