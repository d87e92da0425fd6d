//! Networks that stop carrying anything: cables that are pulled, and routes that vanish. Each host is a network namespace of the test's own.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use annulus::{Communicator, Config, Launch, ReduceOp};

/// Set in the ranks' processes only: where they leave a note that they work.
const NOTES: &str = "ANNULUS_TEST_NETWORK_NOTES";

/// Not a test by itself: what each rank's process runs. It calls until a call fails, and prints what it got.
#[test]
fn rank_process() {
    let Some(notes) = std::env::var_os(NOTES) else { return };
    let mut config = Config::from_env().expect("settings");
    config.timeout = Duration::from_secs(120);
    config.heartbeat = Some(Duration::from_secs(1));
    let launch = Launch::from_env().expect("a launch");
    let comm = Communicator::launched(&launch, &config).expect("ranks meet");
    let mut rounds = 0;
    let error = loop {
        let mut sums = vec![1.0_f32; 10_000];
        if let Err(error) = comm.all_reduce(&mut sums, ReduceOp::Sum) {
            break error;
        }
        rounds += 1;
        if rounds == 3 {
            let note = Path::new(&notes).join(format!("rank{}", comm.rank()));
            std::fs::write(note, "works").expect("a note");
        }
    };
    println!("\nresult {} {error} {:?}", comm.rank(), comm.lost_ranks());
    // The end of this process is none of the others' business.
    std::thread::sleep(Duration::from_secs(3));
}

/// Three hosts. The first leads to both others, and passes on what these send each other.
const HOSTS: &str = r#"
    mount -t tmpfs none /run
    mkdir /run/notes
    ip link set lo up
    echo 1 >/proc/sys/net/ipv4/ip_forward
    for n in 1 2; do
        ip netns add far$n
        ip link add name live$n type veth peer name live netns far$n
        ip address add 10.77.$n.1/24 dev live$n
        ip link set live$n up
        ip netns exec far$n ip link set lo up
        ip netns exec far$n ip address add 10.77.$n.2/24 dev live
        ip netns exec far$n ip link set live up
        ip netns exec far$n ip route add default via 10.77.$n.1
    done
"#;

/// Runs a rank on each of `world` hosts, and `cut` when all of them work; returns what they say, or `None` where there are
/// no namespaces.
fn cut(world: usize, cut: &str) -> Option<Vec<String>> {
    let ranks: String = (0..world)
        .map(|rank| {
            let host = if rank == 0 { String::new() } else { format!("ip netns exec far{rank}") };
            format!(
                "{host} env RANK={rank} WORLD_SIZE={world} LOCAL_WORLD_SIZE=1 \"$0\" --exact rank_process --nocapture --test-threads=1 &\n"
            )
        })
        .collect();
    let notes: Vec<_> = (0..world).map(|rank| format!("[ -e /run/notes/rank{rank} ]")).collect();
    let script = format!(
        "set -e\n{HOSTS}\necho situation made\nset +e\n{ranks}\nuntil {}; do sleep 0.05; done\n{cut}\nwait\n",
        notes.join(" && ")
    );
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--mount", "--net"]);
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    let output = command
        .args(["timeout", "100", "sh", "-c", &script])
        .arg(std::env::current_exe().expect("this test"))
        .env(NOTES, "/run/notes")
        .env("ANNULUS_TRANSPORT", "tcp")
        .env("ANNULUS_ROOT", "10.77.1.1:7701")
        .env("TORCHELASTIC_RUN_ID", format!("network-{}", std::process::id()))
        .env("MASTER_ADDR", "10.77.1.1")
        .env("MASTER_PORT", "7701")
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: unshare: {error}");
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if !text.contains("situation made") {
        println!("skipped: network namespaces: {}", errors.trim().replace('\n', "; "));
        return None;
    }
    let result = |rank: usize| {
        let beginning = format!("result {rank} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&beginning));
        line.unwrap_or_else(|| panic!("rank {rank} says nothing:\n{text}\n{errors}")).to_owned()
    };
    Some((0..world).map(result).collect())
}

#[test]
fn a_cable_that_is_pulled() {
    let Some(said) = cut(3, "ip link set live2 down") else { return };
    for (rank, said) in said.iter().enumerate() {
        // The one that is cut off cannot know that it is alone.
        let lost = if rank == 2 { 0 } else { 2 };
        let expected = format!("rank {lost} (pid ");
        assert!(said.starts_with(&expected) && said.contains(") is lost: "), "rank {rank}: {said}");
    }
}

#[test]
fn a_route_between_two_ranks_that_vanishes() {
    // Both still reach the root.
    let Some(said) = cut(3, "echo 0 >/proc/sys/net/ipv4/ip_forward") else { return };
    assert!(said.iter().any(|said| said.contains("timed out")), "{said:?}");
    for said in &said {
        assert!(!said.contains("did not end within"), "long before the deadline: {said}");
        assert!(said.contains("rank 1") || said.contains("rank 2"), "{said}");
        assert!(said.ends_with(" []"), "nobody is lost: {said}");
    }
}
