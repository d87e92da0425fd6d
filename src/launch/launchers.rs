//! Each launcher's own words for rank, world size and host.

use annulus_plan::Rank;

use super::variables::Variables;
use super::{JobIdentity, LaunchError, Launcher};

/// What a launcher says about a rank's place in the job.
pub(super) struct Place {
    pub(super) launcher: Launcher,
    pub(super) rank: Rank,
    pub(super) world: usize,
    pub(super) local_rank: Option<usize>,
    pub(super) local_world: Option<usize>,
    pub(super) hosts: Hosts,
    pub(super) identity: JobIdentity,
}

/// Where the job's ranks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hosts {
    /// All on this host.
    One,
    /// On more than one.
    Several,
    /// The launcher does not say.
    Unknown,
}

/// The names of one launcher's variables.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    world: &'static str,
    local_rank: &'static str,
    local_world: &'static str,
}

const ANNULUS: Names = Names {
    launcher: Launcher::Annulus,
    rank: "ANNULUS_RANK",
    world: "ANNULUS_WORLD_SIZE",
    local_rank: "ANNULUS_LOCAL_RANK",
    local_world: "ANNULUS_LOCAL_WORLD_SIZE",
};
const TORCHRUN: Names = Names {
    launcher: Launcher::Torchrun,
    rank: "RANK",
    world: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_world: "LOCAL_WORLD_SIZE",
};
const OPEN_MPI: Names = Names {
    launcher: Launcher::OpenMpi,
    rank: "OMPI_COMM_WORLD_RANK",
    world: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_world: "OMPI_COMM_WORLD_LOCAL_SIZE",
};
const PMI: Names = Names {
    launcher: Launcher::Pmi,
    rank: "PMI_RANK",
    world: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_world: "MPI_LOCALNRANKS",
};

/// Which launcher started this process, and as which rank.
pub(super) fn recognise(variables: &Variables<'_>) -> Result<Place, LaunchError> {
    let begun = |names: &Names| variables.has(names.rank) || variables.has(names.world);
    // Batch scripts often export WORLD_SIZE and let `srun` or `mpirun` number the ranks.
    let elsewhere = begun(&OPEN_MPI) || begun(&PMI) || variables.has("SLURM_PROCID");
    if begun(&ANNULUS) {
        annulus(variables)
    } else if variables.has("RANK") || (variables.has("WORLD_SIZE") && !elsewhere) {
        torchrun(variables)
    } else if begun(&OPEN_MPI) {
        open_mpi(variables)
    } else if begun(&PMI) && variables.text("PMI_RANK") != variables.text("SLURM_PROCID") {
        pmi(variables)
    } else if variables.has("SLURM_PROCID") {
        slurm(variables) // also `srun --mpi=pmi2`, which sets PMI's variables too
    } else {
        Err(LaunchError::NotLaunched)
    }
}

fn annulus(variables: &Variables<'_>) -> Result<Place, LaunchError> {
    let mut place = place(variables, &ANNULUS)?;
    place.identity =
        identity(variables, &["ANNULUS_WORLD_SIZE", "ANNULUS_ROOT"]).with_ancestor(ANNULUS.rank);
    if let Some(secret) = variables.text("ANNULUS_SECRET") {
        // As a name in messages it must stay secret: only its hash takes part.
        let hash = blake3::derive_key("annulus 2026 job name from secret", secret.as_bytes());
        let hash = blake3::Hash::from_bytes(hash).to_hex().to_string();
        place.identity = JobIdentity::new(vec![("hash of ANNULUS_SECRET", hash)]);
    }
    Ok(place)
}

fn torchrun(variables: &Variables<'_>) -> Result<Place, LaunchError> {
    let mut place = place(variables, &TORCHRUN)?;
    place.identity = identity(
        variables,
        &[
            "MASTER_ADDR",
            "MASTER_PORT",
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_RESTART_COUNT",
            "WORLD_SIZE",
            "ANNULUS_ROOT",
            "ANNULUS_PORT",
        ],
    );
    Ok(place)
}

fn open_mpi(variables: &Variables<'_>) -> Result<Place, LaunchError> {
    let mut place = place(variables, &OPEN_MPI)?;
    place.identity = mpi_identity(
        variables,
        OPEN_MPI.rank,
        &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_COMM_WORLD_SIZE", "ANNULUS_ROOT"],
    );
    Ok(place)
}

fn pmi(variables: &Variables<'_>) -> Result<Place, LaunchError> {
    let mut place = place(variables, &PMI)?;
    place.identity = mpi_identity(variables, PMI.rank, &["PMI_JOBID", "PMI_SIZE", "ANNULUS_ROOT"]);
    Ok(place)
}

fn slurm(variables: &Variables<'_>) -> Result<Place, LaunchError> {
    let launcher = Launcher::Slurm;
    let missing = |missing| LaunchError::Missing {
        launcher,
        present: format!("SLURM_PROCID={}", variables.text("SLURM_PROCID").unwrap_or_default()),
        missing,
    };
    let rank = variables.count("SLURM_PROCID")?.ok_or(LaunchError::NotLaunched)?;
    // The step's own count first: inside `srun -n` it differs from what the job asked for.
    let sizes = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"];
    let world = variables.first_count(&sizes)?;
    let (world_variable, world) = world.ok_or_else(|| missing("SLURM_NTASKS"))?;
    check_rank("SLURM_PROCID", rank, world_variable, world)?;
    if world > 1 && variables.text("SLURM_STEP_ID").or(variables.text("SLURM_STEPID")).is_none() {
        let job = variables.text("SLURM_JOB_ID").unwrap_or_default();
        return Err(LaunchError::BatchScript { job, tasks: world });
    }
    let nodes =
        variables.first_count(&["SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"])?;
    let hosts = match nodes {
        Some((_, 1)) => Hosts::One,
        Some(_) => Hosts::Several,
        None => Hosts::Unknown,
    };
    Ok(Place {
        launcher,
        rank,
        world,
        local_rank: variables.count("SLURM_LOCALID")?,
        local_world: (hosts == Hosts::One).then_some(world),
        hosts,
        identity: identity(
            variables,
            &[
                "SLURM_JOB_ID",
                "SLURM_STEP_ID",
                "SLURM_RESTART_COUNT",
                "ANNULUS_ROOT",
                "ANNULUS_PORT",
            ],
        ),
    })
}

/// What all launchers but SLURM say alike. The identity is left for the caller.
fn place(variables: &Variables<'_>, names: &Names) -> Result<Place, LaunchError> {
    let launcher = names.launcher;
    let missing = |present: &str, missing| LaunchError::Missing {
        launcher,
        present: format!("{present}={}", variables.text(present).unwrap_or_default()),
        missing,
    };
    let rank = variables.count(names.rank)?.ok_or_else(|| missing(names.world, names.rank))?;
    let world = variables.count(names.world)?.ok_or_else(|| missing(names.rank, names.world))?;
    check_rank(names.rank, rank, names.world, world)?;
    let local_rank = variables.count(names.local_rank)?;
    let local_world = variables.count(names.local_world)?;
    if let Some(local_world) = local_world {
        if local_world > world {
            return Err(LaunchError::LocalExceedsWorld {
                local_variable: names.local_world,
                local: local_world,
                world_variable: names.world,
                world,
            });
        }
        if let Some(local_rank) = local_rank {
            check_rank(names.local_rank, local_rank, names.local_world, local_world)?;
        }
    }
    let hosts = match local_world {
        Some(local) if local == world => Hosts::One,
        // Two torchrun agents, or two tests, may share a host.
        Some(_) if launcher == Launcher::Torchrun => Hosts::Unknown,
        Some(_) => Hosts::Several,
        None => Hosts::Unknown,
    };
    let identity = JobIdentity::new(Vec::new());
    Ok(Place { launcher, rank, world, local_rank, local_world, hosts, identity })
}

fn check_rank(
    rank_variable: &'static str,
    rank: usize,
    size_variable: &'static str,
    size: usize,
) -> Result<(), LaunchError> {
    if rank < size {
        return Ok(());
    }
    Err(LaunchError::RankOutOfRange { rank_variable, rank, size_variable, size })
}

fn identity(variables: &Variables<'_>, names: &[&'static str]) -> JobIdentity {
    let value = |&name: &&'static str| Some((name, variables.text(name)?));
    JobIdentity::new(names.iter().filter_map(value).collect())
}

/// MPI's launchers may name the job, in the first of `names`; else it is known by the launching process.
fn mpi_identity(
    variables: &Variables<'_>,
    rank: &'static str,
    names: &[&'static str],
) -> JobIdentity {
    let identity = identity(variables, names);
    if variables.has(names[0]) { identity } else { identity.with_ancestor(rank) }
}
