use super::*;

/// Reads `text`, `NAME=value` words.
fn launch(text: &str) -> Result<Launch, LaunchError> {
    Launch::from_vars(|name| {
        let mut pairs = text.split_whitespace().filter_map(|word| word.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    })
}

fn good(text: &str) -> Launch {
    launch(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn error(text: &str) -> String {
    launch(text).expect_err(text).to_string()
}

/// The address and where it came from.
fn address(launch: &Launch) -> (String, &str) {
    match &launch.meeting {
        Meeting::Address { root, source, .. } => (root.to_string(), source),
        other => panic!("not a meeting at an address: {other:?}"),
    }
}

const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

#[test]
fn annulus_run() {
    let text = format!(
        "ANNULUS_RANK=1 ANNULUS_WORLD_SIZE=4 ANNULUS_LOCAL_RANK=1 ANNULUS_LOCAL_WORLD_SIZE=2 \
         ANNULUS_ROOT=10.0.0.1:4000 ANNULUS_SECRET={SECRET} ANNULUS_LISTEN_FD=5 RANK=9 ANNULUS_TIMEOUT=500ms"
    );
    let launch = good(&text);
    assert_eq!((launch.launcher, launch.rank, launch.world), (Launcher::Annulus, 1, 4));
    assert_eq!((launch.local_rank, launch.local_world), (Some(1), Some(2)));
    assert_eq!(launch.timeout, Duration::from_millis(500));
    assert_eq!(address(&launch).0, "10.0.0.1:4000");
    let Meeting::Address { secret: Some(secret), listener: Some(5), .. } = &launch.meeting else {
        panic!("{:?}", launch.meeting);
    };
    assert_eq!(secret.0[..3], [0x00, 0x11, 0x22]);
    assert!(!format!("{launch:?}").contains("112233"), "the secret is printed");
}

#[test]
fn annulus_run_on_one_host_needs_no_address() {
    let launch = good("ANNULUS_RANK=0 ANNULUS_WORLD_SIZE=2 ANNULUS_LOCAL_WORLD_SIZE=2");
    assert!(matches!(launch.meeting, Meeting::Host(_)));
    assert_eq!(launch.timeout, DEFAULT_TIMEOUT);
}

#[test]
fn torchrun_on_one_host() {
    let text = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \
                TORCHELASTIC_RUN_ID=none";
    let (Meeting::Host(first), Meeting::Host(second)) = (
        good(&format!("{text} TORCHELASTIC_RESTART_COUNT=0")).meeting,
        good(&format!("{text} TORCHELASTIC_RESTART_COUNT=1")).meeting,
    ) else {
        panic!("not on one host");
    };
    assert_ne!(first.digest("x"), second.digest("x"), "a restart meets elsewhere");
}

#[test]
fn torchrun_on_several_hosts_leaves_the_stores_port_alone() {
    let text = "RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=29500";
    let launch = good(text);
    assert_eq!(launch.launcher, Launcher::Torchrun);
    assert_eq!(address(&launch).0, "node1:29501");
    let launch = good(&format!("{text} ANNULUS_PORT=31000"));
    assert_eq!(address(&launch).0, "node1:31000");
    let launch = good(&format!("{text} ANNULUS_ROOT=[fd00::1]:7"));
    assert_eq!(address(&launch), ("[fd00::1]:7".into(), "ANNULUS_ROOT=[fd00::1]:7"));
}

#[test]
fn ranks_and_a_loopback_master_are_on_one_host() {
    let launch = good("RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29500");
    assert!(matches!(launch.meeting, Meeting::Host(_)));
}

#[test]
fn a_world_of_one_meets_nobody() {
    assert_eq!(good("RANK=0 WORLD_SIZE=1").meeting, Meeting::Alone);
    assert_eq!(good("SLURM_PROCID=0 SLURM_NTASKS=1").meeting, Meeting::Alone);
}

#[test]
fn open_mpi() {
    let text = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 PMIX_NAMESPACE=prterun-1@1";
    let launch = good(&format!("{text} OMPI_COMM_WORLD_LOCAL_SIZE=4 WORLD_SIZE=4"));
    assert_eq!((launch.launcher, launch.rank, launch.world), (Launcher::OpenMpi, 3, 4));
    assert!(matches!(launch.meeting, Meeting::Host(_)));
    let several = format!("{text} OMPI_COMM_WORLD_LOCAL_SIZE=2");
    assert_eq!(
        error(&several),
        "Open MPI started 4 ranks, 2 on this host, and does not tell where rank 0 is: set ANNULUS_ROOT=host:port on \
         all ranks, to the host of rank 0 and a free port"
    );
    let launch = good(&format!("{several} ANNULUS_ROOT=node1 ANNULUS_PORT=4000"));
    assert_eq!(address(&launch).0, "node1:4000");
    let launch = good(&format!("{several} MASTER_ADDR=node1 MASTER_PORT=29500"));
    assert_eq!(address(&launch).0, "node1:29501");
}

#[test]
fn mpich_and_intel_mpi() {
    let text = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1";
    let launch = good(&format!("{text} MPI_LOCALNRANKS=2 SLURM_PROCID=0 SLURM_NTASKS=1"));
    assert_eq!((launch.launcher, launch.rank, launch.world), (Launcher::Pmi, 1, 2));
    assert!(matches!(launch.meeting, Meeting::Host(_)));
    assert!(error(text).contains("an unknown number on this host"));
    assert!(error("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALNRANKS=1").contains("ANNULUS_ROOT=host:port"));
}

#[test]
fn slurm() {
    let text = "SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_JOB_ID=77 SLURM_STEP_ID=0 PMI_RANK=5 PMI_SIZE=8";
    let launch = good(&format!("{text} SLURM_NNODES=1 SLURM_STEP_NODELIST=node7"));
    assert_eq!((launch.launcher, launch.rank, launch.world), (Launcher::Slurm, 5, 8));
    assert!(matches!(launch.meeting, Meeting::Host(_)));

    let several = format!("{text} SLURM_NNODES=3 SLURM_JOB_NODELIST=a[01-05]");
    let launch = good(&format!("{several} SLURM_STEP_NODELIST=node[02-03],gpu5"));
    let Meeting::Address { root, .. } = &launch.meeting else { panic!("{:?}", launch.meeting) };
    assert_eq!(root.host, "node02");
    assert!((20_000..32_000).contains(&root.port));
    assert_eq!(address(&good(&format!("{several} ANNULUS_PORT=4000"))).0, "a01:4000");
    let (other, _) = several.split_once("SLURM_STEP_ID=0").expect("the step");
    let other = format!("{other} SLURM_STEP_ID=1 SLURM_NNODES=3 SLURM_JOB_NODELIST=a[01-05]");
    assert_ne!(address(&good(&several)).0, address(&good(&other)).0, "each step its port");
}

#[test]
fn a_slurm_step_smaller_than_its_job() {
    let launch = good(
        "SLURM_PROCID=1 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=2 SLURM_NNODES=2 SLURM_STEP_NUM_NODES=1 SLURM_JOB_ID=7 \
         SLURM_STEP_ID=3",
    );
    assert_eq!(launch.world, 2);
    assert!(matches!(launch.meeting, Meeting::Host(_)));
}

#[test]
fn nothing_set_says_how_to_launch() {
    let text = error("PATH=/bin SLURM_JOB_ID=7 MASTER_ADDR=node1 RANK= ");
    for word in
        ["ANNULUS_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "annulus run -n 2"]
    {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn errors_name_the_variable_and_its_value() {
    for (text, words) in [
        ("RANK=3", "torchrun: RANK=3 is set, but WORLD_SIZE is not"),
        ("WORLD_SIZE=3", "torchrun: WORLD_SIZE=3 is set, but RANK is not"),
        ("RANK=0 WORLD_SIZE=2", "torchrun: RANK=0 is set, but MASTER_ADDR is not"),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=node1",
            "torchrun: MASTER_ADDR=node1 is set, but MASTER_PORT is not",
        ),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=65535",
            "MASTER_PORT=65535: expected a port below 65535, because the ranks meet at the next one, or ANNULUS_PORT",
        ),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=http",
            "MASTER_PORT=http: expected a port, 1 to 65535",
        ),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a/b MASTER_PORT=1",
            "MASTER_ADDR=a/b: \"a/b\" is no host name or address",
        ),
        ("RANK=2 WORLD_SIZE=2", "RANK=2 is out of range for WORLD_SIZE=2: ranks are 0 to size - 1"),
        ("RANK=0 WORLD_SIZE=0", "RANK=0 is out of range for WORLD_SIZE=0: ranks are 0 to size - 1"),
        ("RANK=-1 WORLD_SIZE=2", "RANK=-1: expected a whole number, 0 or more"),
        ("RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3 exceeds WORLD_SIZE=2"),
        (
            "RANK=1 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2",
            "LOCAL_RANK=2 is out of range for LOCAL_WORLD_SIZE=2: ranks are 0 to size - 1",
        ),
        (
            "OMPI_COMM_WORLD_SIZE=2",
            "Open MPI: OMPI_COMM_WORLD_SIZE=2 is set, but OMPI_COMM_WORLD_RANK is not",
        ),
        (
            "PMI_RANK=0 PMI_SIZE=4 MPI_LOCALNRANKS=2 ANNULUS_ROOT=127.0.0.1:5",
            "ANNULUS_ROOT=127.0.0.1:5 is a loopback address, which other hosts cannot reach, but the 4 ranks are on \
             several hosts: set ANNULUS_ROOT to an address or name of rank 0's host",
        ),
        (
            "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7",
            "this is the batch script of SLURM job 7 itself, not one of its 4 tasks: start the program with `srun`",
        ),
        ("SLURM_PROCID=0", "SLURM: SLURM_PROCID=0 is set, but SLURM_NTASKS is not"),
        (
            "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_ID=0 SLURM_JOB_NODELIST=a[1-",
            "SLURM_JOB_NODELIST=a[1-: no number of at most 18 digits where a range needs one at byte 4",
        ),
        (
            "RANK=0 WORLD_SIZE=1 ANNULUS_TIMEOUT=soon",
            "ANNULUS_TIMEOUT=soon: expected a whole number of seconds, or one with a unit: 500ms, 90s, 10m, 2h",
        ),
        ("RANK=0 WORLD_SIZE=1 ANNULUS_PORT=0", "ANNULUS_PORT=0: expected a port, 1 to 65535"),
        (
            "RANK=0 WORLD_SIZE=1 ANNULUS_SECRET=hunter2",
            "ANNULUS_SECRET=(7 characters, not shown): expected 64 hexadecimal digits",
        ),
        (
            "RANK=0 WORLD_SIZE=1 ANNULUS_LISTEN_FD=2",
            "ANNULUS_LISTEN_FD=2: expected the number of an inherited listening socket, 3 or more",
        ),
    ] {
        assert_eq!(error(text), words, "{text}");
    }
}
