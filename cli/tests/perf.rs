//! The benchmarks as their users run them.

mod process;

use process::{Ended, command, finish, run};

const ALL_REDUCE: &str = env!("CARGO_BIN_EXE_all_reduce_perf");
const ALL_GATHER: &str = env!("CARGO_BIN_EXE_all_gather_perf");
const REDUCE_SCATTER: &str = env!("CARGO_BIN_EXE_reduce_scatter_perf");
const BROADCAST: &str = env!("CARGO_BIN_EXE_broadcast_perf");
const REDUCE: &str = env!("CARGO_BIN_EXE_reduce_perf");
const ALL_TO_ALL: &str = env!("CARGO_BIN_EXE_alltoall_perf");
const SEND_RECV: &str = env!("CARGO_BIN_EXE_sendrecv_perf");
const GATHER: &str = env!("CARGO_BIN_EXE_gather_perf");
const SCATTER: &str = env!("CARGO_BIN_EXE_scatter_perf");

/// A line of the table, by its columns.
struct Row {
    size: usize,
    number: String,
    operator: String,
    root: i64,
    /// As many wrong elements, out of place and in place.
    wrong: [String; 2],
}

/// The rows, read as scripts read them.
fn rows(ended: &Ended) -> Vec<Row> {
    let lines = ended.out.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words.len(), 13, "{line}");
            for rate in [5, 6, 7].into_iter().chain((words[9] != "N/A").then_some(9)) {
                words[rate].parse::<f64>().expect("a number");
            }
            Row {
                size: words[0].parse().expect("a size"),
                number: words[2].to_owned(),
                operator: words[3].to_owned(),
                root: words[4].parse().expect("a rank"),
                wrong: [words[8].to_owned(), words[12].to_owned()],
            }
        })
        .collect()
}

fn good(program: &str, arguments: &[&str]) -> Vec<Row> {
    let ended = run(program, arguments);
    assert_eq!(ended.code, Some(0), "{arguments:?}: {}\n{}", ended.err, ended.out);
    assert!(ended.out.contains("\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : "));
    let rows = rows(&ended);
    assert!(!rows.is_empty());
    for row in &rows {
        assert_eq!(row.wrong[0], "0");
        assert!(["0", "N/A"].contains(&row.wrong[1].as_str()), "{}", row.wrong[1]);
    }
    rows
}

const SMALL: [&str; 10] = ["-b", "8", "-e", "8K", "-f", "32", "-n", "2", "-w", "1"];

#[test]
fn processes_reduce_without_an_option() {
    let rows = good(ALL_REDUCE, &["-e", "64K", "-f", "16", "-n", "3"]);
    let sizes: Vec<_> = rows.iter().map(|row| row.size).collect();
    assert_eq!(sizes, [8, 128, 2048, 32768]);
    assert!(
        rows.iter().all(|row| row.number == "float" && row.operator == "sum" && row.root == -1)
    );
}

#[test]
fn every_collective_is_right_among_three_processes() {
    for program in [
        ALL_REDUCE,
        ALL_GATHER,
        REDUCE_SCATTER,
        BROADCAST,
        REDUCE,
        ALL_TO_ALL,
        SEND_RECV,
        GATHER,
        SCATTER,
    ] {
        let rows = good(program, &[&SMALL[..], &["--ranks", "3"]].concat());
        let in_place = ![ALL_TO_ALL, SEND_RECV].contains(&program);
        assert!(rows.iter().all(|row| (row.wrong[1] == "0") == in_place), "{program}");
    }
}

#[test]
fn every_type_and_operator_is_right_among_three_threads() {
    for program in [ALL_REDUCE, REDUCE_SCATTER] {
        let all =
            ["-b", "1K", "-e", "1K", "-n", "1", "-w", "0", "-o", "all", "-d", "all", "-t", "3"];
        let rows = good(program, &all);
        assert_eq!(rows.len(), 12 * 6);
    }
}

#[test]
fn every_root_serves() {
    for program in [BROADCAST, REDUCE, GATHER, SCATTER] {
        let rows = good(program, &[&SMALL[..], &["-t", "4", "-r", "all"]].concat());
        assert_eq!(rows.iter().map(|row| row.root).max(), Some(3), "{program}");
    }
}

#[test]
fn transports_and_buffers_can_be_chosen() {
    good(ALL_REDUCE, &[&SMALL[..], &["--transport", "tcp"]].concat());
    good(ALL_REDUCE, &[&SMALL[..], &["--transport", "shm", "-R", "1", "-u", "1"]].concat());
    good(ALL_REDUCE, &[&SMALL[..], &["--transport", "proc", "--algo", "ring"]].concat());
    good(ALL_GATHER, &[&SMALL[..], &["--ranks", "1"]].concat());
}

#[test]
fn ways_of_timing_can_be_chosen() {
    for average in ["0", "1", "2", "3"] {
        for blocking in ["0", "1", "2"] {
            let how = ["-a", average, "-z", blocking, "-m", "2", "-N", "2", "-c", "2", "-t", "2"];
            let rows = good(ALL_REDUCE, &[&SMALL[..], &how].concat());
            assert_eq!(rows.len(), 6, "three sizes, two cycles");
        }
    }
}

#[test]
fn unchecked_rows_say_so() {
    let ended = run(ALL_REDUCE, &[&SMALL[..], &["-c", "0", "-t", "2"]].concat());
    assert!(rows(&ended).iter().all(|row| row.wrong == ["N/A", "N/A"]));
}

#[test]
fn ranks_of_a_launcher_are_ranks() {
    let ended = run(
        env!("CARGO_BIN_EXE_annulus"),
        &[
            "run",
            "-n",
            "2",
            "--no-prefix",
            "--",
            ALL_REDUCE,
            "-e",
            "64",
            "-n",
            "2",
            "-t",
            "1",
            "-g",
            "1",
        ],
    );
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(rows(&ended).len(), 4);
    assert_eq!(ended.out.matches("Rank  1 Group").count(), 1, "only rank 0 prints");
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    for (program, arguments, words) in [
        (ALL_REDUCE, &["-g", "2"][..], "--ngpus makes no sense here"),
        (ALL_REDUCE, &["-r", "1"], "all-reduce has no root"),
        (ALL_GATHER, &["-o", "sum"], "all-gather combines nothing"),
        (ALL_REDUCE, &["--transport", "pigeon"], "use auto, proc, shm or tcp"),
        (ALL_REDUCE, &["--ranks", "0"], "at least 1"),
        (ALL_REDUCE, &["-b", "1M", "-e", "1K"], "more than"),
        (ALL_REDUCE, &["-S", "2"], "--report_timestamps is 2"),
        (ALL_REDUCE, &["-N", "0", "--plot", "x.svg"], "never ends"),
    ] {
        let ended = run(program, arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}");
        assert!(ended.err.contains(words), "{arguments:?}: {}", ended.err);
        assert_eq!(ended.out, "");
    }
}

#[test]
fn impossible_wishes_fail_with_a_reason() {
    for (program, arguments, words) in [
        (BROADCAST, &["-r", "7", "-t", "2"][..], "there are 2 ranks: use 0 to 1"),
        (ALL_REDUCE, &["--algo", "magic"], "unknown name `magic`"),
        (ALL_REDUCE, &["-b", "64G", "-e", "1024G", "-t", "2"], "than is available"),
    ] {
        let ended = run(program, arguments);
        assert_eq!(ended.code, Some(1), "{arguments:?}");
        assert!(ended.err.contains(words), "{arguments:?}: {}", ended.err);
    }
}

#[test]
fn a_slow_run_fails_if_speed_is_required() {
    let run = |required: &str| {
        let mut command = command(ALL_REDUCE, &["-e", "8", "-n", "1", "-t", "2"]);
        command.env("NCCL_TESTS_MIN_BW", required);
        finish(command)
    };
    let slow = run("1e9");
    assert_eq!(slow.code, Some(1));
    assert!(slow.out.contains(" FAILED"));
    assert_eq!(run("0").code, Some(0));
    assert!(run("fast").err.contains("NCCL_TESTS_MIN_BW=fast"));
}

#[test]
fn results_go_to_files() {
    let folder = std::env::temp_dir().join(format!("annulus-perf-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (json, text, plot) = (path("a.json"), path("a.txt"), path("a.svg"));
    good(ALL_REDUCE, &[&SMALL[..], &["-t", "2", "-J", &json, "--plot", &plot]].concat());
    let ended = run(ALL_REDUCE, &[&SMALL[..], &["-t", "2", "-J", &text]].concat());
    let read = |path: &str| std::fs::read_to_string(path).expect("the file is there");
    let (json, text, plot) = (read(&json), read(&text), read(&plot));
    std::fs::remove_dir_all(&folder).expect("the test's own folder");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["version"], 3);
    assert_eq!(json["results"].as_array().map(Vec::len), Some(3));
    assert_eq!(json["results"][0]["out_of_place"]["nwrong"], 0);
    assert_eq!(json["devices"].as_array().map(Vec::len), Some(2));
    assert_eq!(json["out_of_bounds"]["okay"], true);
    assert_eq!(text, ended.out);
    assert!(plot.starts_with("<svg") && plot.trim_end().ends_with("</svg>"));
}

#[test]
fn iterations_can_be_timed_one_by_one() {
    let options = ["-I", "-K", "1", "-n", "5", "-S", "1", "-M", "1", "-e", "8", "-t", "2"];
    let ended = run(ALL_REDUCE, &options);
    let row = ended.out.lines().find(|line| !line.starts_with('#')).expect("a row");
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(words.len(), 13 + 2 * 4 + 2, "{row}");
    let number = |at: usize| words[at].parse::<f64>().expect("a number");
    assert!(number(9) <= number(11) && number(11) <= number(10), "least, 99 %, most: {row}");
    assert_eq!(ended.out.matches(" memory: ").count(), 2);
}

#[test]
fn large_rows_are_compared_with_memory() {
    let ended = run(ALL_REDUCE, &["-b", "1M", "-e", "1M", "-n", "1", "-w", "0", "-t", "2"]);
    assert!(ended.out.contains("# limit      1048576 B"), "{}", ended.out);
    assert!(ended.out.contains("2 n N bytes"), "{}", ended.out);
}
