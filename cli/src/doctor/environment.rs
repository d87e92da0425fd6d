//! What the environment asks for.

use annulus::{Config, Launch, LaunchError};

use super::Finding;

pub(super) fn examine() -> Vec<Finding> {
    let mut findings = vec![launcher()];
    findings.extend(settings());
    let variables = std::env::vars_os().map(|(name, value)| {
        (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
    });
    findings.extend(examine_variables(variables));
    findings
}

fn launcher() -> Finding {
    match Launch::from_env() {
        Ok(launch) => {
            let Launch { launcher, rank, world, .. } = launch;
            Finding::ok(
                "launcher",
                format!("this is rank {rank} of {world}, started by {launcher}"),
            )
        }
        Err(LaunchError::NotLaunched) => Finding::ok("launcher", "none has started this process")
            .with_remedy("start ranks by `annulus run -n 2 -- program`, torchrun, mpirun or srun"),
        Err(error) => Finding::problem(
            "launcher",
            error.to_string(),
            "mend or unset the variable, or start by `annulus run`",
        ),
    }
}

fn settings() -> Vec<Finding> {
    match Config::from_env() {
        Ok(config) => {
            let warnings = config.tuning.warnings().iter();
            warnings.map(|warning| Finding::note("settings", warning.clone())).collect()
        }
        Err(error) => {
            vec![Finding::problem("settings", error.to_string(), "mend the variable or unset it")]
        }
    }
}

/// What each variable means.
const KNOWN: [(&str, &str); 31] = [
    ("ANNULUS_ALGO", "which algorithms may be used"),
    ("ANNULUS_CHANNELS", "how many channels are used"),
    ("ANNULUS_CHUNK", "how large the pieces are that travel, in bytes"),
    ("ANNULUS_CHECKSUM", "whether messages carry checksums: 0 or 1"),
    ("ANNULUS_ENCRYPT", "whether TCP links are encrypted: 0 or 1"),
    ("ANNULUS_ISA", "which instructions reduce: portable, avx2 or avx512"),
    ("ANNULUS_LISTEN_FD", "the socket that rank 0 has inherited"),
    ("ANNULUS_LOCAL_RANK", "this rank's number on its host"),
    ("ANNULUS_LOCAL_WORLD_SIZE", "number of ranks on this host"),
    ("ANNULUS_LOG", "what the commands log: error, warn, info, debug, trace or off"),
    ("ANNULUS_PORT", "the port at which ranks meet"),
    ("ANNULUS_PROTO", "which protocols may be used"),
    ("ANNULUS_RANK", "this rank's number"),
    ("ANNULUS_ROOT", "host:port where the ranks meet"),
    ("ANNULUS_SECRET", "keeps strangers out; not shown"),
    ("ANNULUS_SOCKET_IFNAME", "which interfaces peers are offered"),
    ("ANNULUS_TIMEOUT", "how long a call may take"),
    ("ANNULUS_TRANSPORT", "which links may be used: auto, proc, shm or tcp"),
    ("ANNULUS_WORLD_SIZE", "number of ranks"),
    ("NCCL_ALGO", "like ANNULUS_ALGO, which goes first"),
    ("NCCL_BUFFSIZE", "eight times ANNULUS_CHUNK, which goes first"),
    ("NCCL_MAX_CTAS", "at most so many channels; ANNULUS_CHANNELS goes first"),
    ("NCCL_MAX_NCHANNELS", "at most so many channels; ANNULUS_CHANNELS goes first"),
    ("NCCL_MIN_CTAS", "at least so many channels; ANNULUS_CHANNELS goes first"),
    ("NCCL_MIN_NCHANNELS", "at least so many channels; ANNULUS_CHANNELS goes first"),
    ("NCCL_PROTO", "like ANNULUS_PROTO, which goes first"),
    ("NCCL_SOCKET_IFNAME", "like ANNULUS_SOCKET_IFNAME, which goes first"),
    ("NCCL_TESTS_MIN_BW", "the least bus bandwidth that a benchmark accepts, in GB/s"),
    ("MASTER_ADDR", "the host of rank 0, as torchrun says it"),
    ("MASTER_PORT", "the port of torchrun's store; the ranks meet at the next one"),
    ("LOCAL_RANK", "this rank's number on its host, as torchrun says it"),
];

fn examine_variables(variables: impl Iterator<Item = (String, String)>) -> Vec<Finding> {
    let mut variables: Vec<_> = variables.collect();
    variables.sort();
    variables.iter().filter_map(|(name, value)| examine_variable(name, value)).collect()
}

fn examine_variable(name: &str, value: &str) -> Option<Finding> {
    let subject = "variable";
    if let Some((_, meaning)) = KNOWN.iter().find(|(known, _)| *known == name) {
        let value = if name == "ANNULUS_SECRET" { "..." } else { value };
        return Some(Finding::ok(subject, format!("{name}={value}: {meaning}")));
    }
    if name.starts_with("ANNULUS_") {
        let finding = Finding::note(subject, format!("{name} means nothing"));
        let near = KNOWN.iter().map(|(known, _)| (distance(known, name), *known)).min();
        return Some(match near {
            Some((distance, known)) if distance <= 3 => {
                finding.with_remedy(format!("did you mean {known}?"))
            }
            _ => finding,
        });
    }
    let foreign = name.starts_with("NCCL_");
    foreign.then(|| Finding::note(subject, format!("{name} is NCCL's, and has no effect here")))
}

/// How many letters must be added, dropped or changed to make `a` of `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn variables_are_explained() {
        let finding = |name: &str, value: &str| examine_variable(name, value);
        let known = finding("ANNULUS_ALGO", "ring").expect("ours");
        assert_eq!(known.found, "ANNULUS_ALGO=ring: which algorithms may be used");
        let secret = finding("ANNULUS_SECRET", "0123").expect("ours");
        assert!(!secret.found.contains("0123"));
        let typo = finding("ANNULUS_TRANSPRT", "shm").expect("ours");
        assert_eq!(typo.remedy.as_deref(), Some("did you mean ANNULUS_TRANSPORT?"));
        let foreign = finding("NCCL_NVLS_ENABLE", "1").expect("NCCL's");
        assert_eq!(foreign.state, State::Note);
        assert_eq!(finding("PATH", "/bin"), None);
    }

    #[test]
    fn distances_are_edits() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }
}
