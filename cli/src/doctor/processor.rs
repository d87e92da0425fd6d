//! Cores and instructions.

use std::fs;
use std::path::Path;

use super::Finding;

pub(super) fn examine() -> Vec<Finding> {
    vec![cores(), instructions()]
}

fn cores() -> Finding {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let online = fs::read_to_string("/sys/devices/system/cpu/online")
        .ok()
        .and_then(|list| count_of_list(&list))
        .unwrap_or(usable);
    let allowed = fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            count_of_list(list)
        })
        .unwrap_or(online);
    let quota = quota();
    let limit = match quota {
        Some(quota) => format!("a control group's quota of {quota:.1}"),
        None => "no quota".to_owned(),
    };
    let found = format!("{usable} usable: {online} online, {allowed} by affinity, {limit}");
    let finding =
        if usable == online { Finding::ok("cores", found) } else { Finding::note("cores", found) };
    if usable == 1 {
        return finding
            .with_remedy("two ranks take turns on one core: fine for tests, slow otherwise");
    }
    if quota.is_some_and(|quota| quota.fract() > 0.0 || (quota as usize) < allowed) {
        return finding.with_remedy(
            "a quota stops ranks for milliseconds when it is used up: give whole cores by affinity (cpuset) instead",
        );
    }
    finding.with_remedy(format!(
        "more than {usable} ranks take turns on the cores, and so wait longer"
    ))
}

/// How many numbers a list such as `0-3,8` has.
fn count_of_list(list: &str) -> Option<usize> {
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        last.checked_sub(first).map(|more| more + 1)
    };
    list.trim().split(',').map(count).sum()
}

/// How many cores' time this process's control groups grant, if they limit it.
fn quota() -> Option<f64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let root = Path::new("/sys/fs/cgroup");
    let limits = Path::new(own).ancestors().filter_map(|group| {
        let group = group.strip_prefix("/").unwrap_or(group);
        parse_quota(&fs::read_to_string(root.join(group).join("cpu.max")).ok()?)
    });
    limits.min_by(f64::total_cmp)
}

/// Reads `200000 100000`: 2 cores; `max 100000`: no limit.
fn parse_quota(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (period > 0.0).then(|| quota / period)
}

#[cfg(target_arch = "x86_64")]
fn instructions() -> Finding {
    let features = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
    ];
    let list = |there: bool| {
        let names = features.iter().filter(|(_, has)| *has == there).map(|(name, _)| *name);
        names.collect::<Vec<_>>().join(" ")
    };
    if features[0].1 && features[1].1 {
        let missing = list(false);
        let without = if missing.is_empty() { String::new() } else { format!("; not {missing}") };
        return Finding::ok("instructions", format!("{}{without}", list(true)));
    }
    Finding::note(
        "instructions",
        format!("{} is missing: reductions use portable code", list(false)),
    )
    .with_remedy("in a virtual machine: pass the host's processor through (-cpu host)")
}

#[cfg(not(target_arch = "x86_64"))]
fn instructions() -> Finding {
    Finding::ok("instructions", format!("{}: reductions use portable code", std::env::consts::ARCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_counted() {
        assert_eq!(count_of_list("0-1\n"), Some(2));
        assert_eq!(count_of_list(" 0,2-4,9"), Some(5));
        assert_eq!(count_of_list("4-2"), None);
        assert_eq!(count_of_list(""), None);
    }

    #[test]
    fn quotas_are_cores() {
        assert_eq!(parse_quota("150000 100000\n"), Some(1.5));
        assert_eq!(parse_quota("max 100000\n"), None);
        assert_eq!(parse_quota("1 0"), None);
    }
}
