//! Systems that lack something, or tell odd things: ranks work all the same, or every one of them says what is missing.
//!
//! Each test makes the situation for a few processes of its own, in namespaces or by limits. Where that is not possible, it
//! is skipped with a printed reason.

mod job;
mod rank;
mod sandbox;

use job::Job;

/// Namespaces of a host that has a network of its own, ranks of which can share memory.
const HOST: &[&str] = &["--net", "--mount", "--uts"];

#[test]
fn a_sandbox_without_process_vm_readv_changes_nothing() {
    Job::of(2).forbid("process_vm_readv").run().all_work_over("shm");
}

#[test]
fn a_sandbox_without_memfd_create_is_named_with_the_remedy() {
    let errors = Job::of(2).forbid("memfd_create").run().errors();
    for error in &errors {
        assert!(error.contains("memfd_create"), "{error}");
        assert!(error.contains("ANNULUS_TRANSPORT=tcp"), "{error}");
    }
    Job::of(2).forbid("memfd_create").set("ANNULUS_TRANSPORT", "tcp").run().all_work_over("tcp");
}

#[test]
fn one_rank_in_a_sandbox_is_named_on_every_rank() {
    let errors = Job::of(3).forbid("memfd_create").only_on(1).run().errors();
    for error in &errors {
        assert!(error.contains("rank 1"), "{error}");
    }
    assert!(errors.is_empty() || errors[1].contains("memfd_create"), "{errors:?}");
}

#[test]
fn a_kernel_without_ipv6() {
    Job::of(2).forbid("ipv6").set("ANNULUS_TRANSPORT", "tcp").run().all_work_over("tcp");
}

#[test]
fn a_host_with_ipv6_turned_off() {
    let setup = "ip link set lo up; echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; ! grep -q . /proc/net/if_inet6";
    let job = Job::of(2).inside(HOST, setup).set("ANNULUS_TRANSPORT", "tcp");
    job.run().all_work_over("tcp");
}

/// The second host of a job, as a namespace of its own: `far` runs a command there.
const TWO_HOSTS: &str = "
    mount -t tmpfs none /run
    ip netns add far
    ip link set lo up
    far() { ip netns exec far \"$@\"; }
    far ip link set lo up
    ip link add name live type veth peer name live netns far
    ip address add 10.77.0.1/24 dev live
    ip link set live up
    far ip address add 10.77.0.2/24 dev live
    far ip link set live up
";

#[test]
fn a_host_name_that_leads_to_loopback() {
    let setup = format!(
        "{TWO_HOSTS}
        hostname oddhost
        mount -t tmpfs none /mnt
        echo '127.0.0.1 localhost oddhost' >/mnt/hosts
        mount --bind /mnt/hosts /etc/hosts"
    );
    // Ranks of this host may meet at its name, and those of another at its address: the name is never asked for.
    let near = Job::of(2).inside(HOST, &setup).set("ANNULUS_ROOT", "oddhost:7701");
    near.run().all_work_over("shm");
    let far = Job::of(2).inside(HOST, &setup).set("ANNULUS_ROOT", "10.77.0.1:7701").far(1);
    far.run().all_work_over("tcp");
}

#[test]
fn a_root_that_other_hosts_cannot_reach_is_named() {
    let job = Job::of(2).inside(HOST, TWO_HOSTS).set("ANNULUS_ROOT", "127.0.0.1:7701").far(1);
    let errors = job.set("ANNULUS_TIMEOUT", "2s").run().errors();
    assert!(
        errors
            .iter()
            .all(|error| error.contains("ANNULUS_ROOT=127.0.0.1:7701")
                || error.contains("1 of 2 ranks")),
        "{errors:?}"
    );
}

#[test]
fn two_interfaces_of_which_one_is_dead() {
    // Both hosts have addresses in one more network, whose cable ends nowhere.
    let setup = format!(
        "{TWO_HOSTS}
        ip link add name dead type veth peer name nowhere
        ip address add 10.88.0.1/24 dev dead
        ip link set dead up
        ip link set nowhere up
        far ip link add name dead type veth peer name nowhere
        far ip address add 10.88.0.2/24 dev dead
        far ip link set dead up
        far ip link set nowhere up"
    );
    for order in ["live,dead", "dead,live"] {
        let job = Job::of(2).inside(HOST, &setup).set("ANNULUS_ROOT", "10.77.0.1:7701").far(1);
        job.set("ANNULUS_SOCKET_IFNAME", order).run().all_work_over("tcp");
    }
    let job = Job::of(2).inside(HOST, &setup).set("ANNULUS_ROOT", "10.77.0.1:7701").far(1);
    let job = job.set("ANNULUS_SOCKET_IFNAME", "dead").set("ANNULUS_TIMEOUT", "3s");
    for error in job.run().errors() {
        assert!(error.contains("10.88.0.") && error.contains("ANNULUS_SOCKET_IFNAME"), "{error}");
    }
}

#[test]
fn a_tiny_shared_memory_file_system() {
    let setup = "mount -t tmpfs -o size=64k none /dev/shm";
    Job::of(3).inside(&["--mount"], setup).run().all_work_over("shm");
}

#[test]
fn hardly_any_locked_memory() {
    Job::of(2).limit("-l 0").run().all_work_over("shm");
}

#[test]
fn too_few_descriptors_for_the_start_are_named_on_every_rank() {
    for limit in ["-n 8", "-n 10"] {
        names_the_limit(&Job::of(3).limit(limit).set("ANNULUS_TIMEOUT", "5s").run().errors());
    }
}

#[test]
fn too_few_descriptors_for_the_links_are_named_on_every_rank() {
    let errors =
        Job::of(8).limit("-n 14").only_on(1).set("ANNULUS_TRANSPORT", "tcp").run().errors();
    assert!(errors[1].contains("ulimit -n"), "{}", errors[1]);
    for error in errors {
        assert!(error.contains("rank 1"), "{error}");
    }
}

#[test]
fn too_few_descriptors_for_the_root_are_named() {
    let job = Job::of(8).limit("-n 16").only_on(0).set("ANNULUS_TRANSPORT", "tcp");
    names_the_limit(&job.set("ANNULUS_TIMEOUT", "5s").run().errors());
}

/// Rank 0 and all that it could let in name the limit. The others may have asked last when it had gone.
fn names_the_limit(errors: &[String]) {
    for (rank, error) in errors.iter().enumerate() {
        let named = error.contains("ulimit -n");
        assert!(named || rank > 0 && error.contains("rank 0"), "rank {rank}: {error}");
    }
}
