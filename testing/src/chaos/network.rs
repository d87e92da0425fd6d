//! Hosts with networks of their own, made of namespaces that end with the harness however it ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::scenario::HOSTS;

/// Set inside of the namespaces.
const MARK: &str = "ANNULUS_CHAOS_INSIDE";

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
#[error("{command}: {problem}")]
pub struct NetworkError {
    command: String,
    problem: String,
}

/// Whether this process is in namespaces of its own already.
#[must_use]
pub fn is_inside() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Starts this program anew, in namespaces that it has for itself: processes, network, mounts. Returns only if that is not
/// possible.
pub fn enter_namespaces() -> NetworkError {
    let mut flags = vec!["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !rustix::process::geteuid().is_root() {
        flags.push("--map-root-user");
    }
    // What is set up later must be possible, too.
    let mut trial = Command::new("unshare");
    trial.args(&flags).args(["sh", "-c", "ip link set lo up && mount -t tmpfs none /run"]);
    if let Err(error) = succeed(trial) {
        return error;
    }
    let program = Path::new("/proc/self/exe");
    let program = std::fs::read_link(program).unwrap_or_else(|_| program.to_path_buf());
    let mut command = Command::new("unshare");
    command.args(&flags).args([
        "sh",
        "-c",
        "ip link set lo up && mount -t tmpfs none /run && exec \"$0\" \"$@\"",
    ]);
    let error = command.arg(program).args(std::env::args_os().skip(1)).env(MARK, "1").exec();
    NetworkError { command: "unshare".into(), problem: error.to_string() }
}

/// Hosts that reach each other over a bridge. Needs namespaces of its own ([`enter_namespaces`]), in which it is made once per `slot`.
#[derive(Debug)]
pub struct Network {
    slot: usize,
}

impl Network {
    /// The hosts of `slot`, at most 255.
    ///
    /// # Errors
    /// When the kernel lacks bridges or pairs of virtual Ethernet devices, or forbids them.
    pub fn new(slot: usize) -> Result<Self, NetworkError> {
        let network = Self { slot };
        let bridge = format!("bridge{slot}");
        ip(&["link", "add", "name", &bridge, "type", "bridge"])?;
        ip(&["link", "set", &bridge, "up"])?;
        for host in 0..HOSTS {
            let (space, near) = (network.space(host), network.cable(host));
            ip(&["netns", "add", &space])?;
            ip(&[
                "link", "add", "name", &near, "type", "veth", "peer", "name", "eth0", "netns",
                &space,
            ])?;
            ip(&["link", "set", &near, "master", &bridge])?;
            ip(&["link", "set", &near, "up"])?;
            let address = format!("10.90.{slot}.{}/24", host + 1);
            for arguments in [
                ["link", "set", "lo", "up"].as_slice(),
                &["address", "add", &address, "dev", "eth0"],
                &["link", "set", "eth0", "up"],
            ] {
                ip(&[["-n", &space].as_slice(), arguments].concat())?;
            }
        }
        Ok(network)
    }

    /// A command that runs `program` on `host`.
    pub(super) fn command(&self, host: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(host)]).arg(program);
        command
    }

    /// Plugs the cable of `host` in, or pulls it out.
    pub(super) fn connect(&self, host: usize, up: bool) -> Result<(), NetworkError> {
        ip(&["link", "set", &self.cable(host), if up { "up" } else { "down" }])
    }

    /// Makes the way to `host` slow and narrow, or as before.
    pub(super) fn hinder(&self, host: usize, hindered: bool) -> Result<(), NetworkError> {
        let cable = self.cable(host);
        let mut remove = Command::new("tc");
        remove.args(["qdisc", "del", "dev", &cable, "root"]);
        if !hindered {
            // It is no error if nothing was in the way.
            let _ = succeed(remove);
            return Ok(());
        }
        let add = |kind: &[&str]| {
            let mut command = Command::new("tc");
            command.args(["qdisc", "add", "dev", &cable, "root"]).args(kind);
            succeed(command)
        };
        // A queue that delays and drops, where the kernel has it; else one that lets little through.
        add(&["netem", "delay", "10ms", "5ms", "loss", "1%"])
            .or_else(|_| add(&["tbf", "rate", "80mbit", "burst", "32kb", "latency", "50ms"]))
    }

    fn space(&self, host: usize) -> String {
        format!("host{}-{host}", self.slot)
    }

    fn cable(&self, host: usize) -> String {
        format!("cable{}-{host}", self.slot)
    }
}

fn ip(arguments: &[&str]) -> Result<(), NetworkError> {
    let mut command = Command::new("ip");
    command.args(arguments);
    succeed(command)
}

fn succeed(mut command: Command) -> Result<(), NetworkError> {
    let outcome = command.stdin(Stdio::null()).output();
    let problem = match outcome {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => "it is not installed".into(),
        Err(error) => error.to_string(),
    };
    Err(NetworkError { command: format!("{command:?}").replace('"', ""), problem })
}
