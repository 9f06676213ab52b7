//! What launchers say, as they have been seen to say it, and what they cannot mean.

use std::ffi::OsString;

use super::*;

fn of(vars: &[(&str, &str)]) -> Result<Option<LaunchEnv>> {
    let get = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, text)| OsString::from(text));
    LaunchEnv::of(&Vars(&get))
}

fn found(vars: &[(&str, &str)]) -> LaunchEnv {
    of(vars).unwrap().unwrap()
}

#[track_caller]
fn refused(vars: &[(&str, &str)], why: &str) {
    let error = of(vars).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains(why), "{error}");
}

/// Rank and size, here and in all.
fn place(env: &LaunchEnv) -> (usize, usize, Option<usize>, Option<usize>) {
    (env.rank, env.world_size, env.local_rank, env.local_world_size)
}

const TORCHRUN: &[(&str, &str)] = &[
    ("GROUP_RANK", "0"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "localhost"),
    ("MASTER_PORT", "35399"),
    ("RANK", "3"),
    ("TORCHELASTIC_RUN_ID", "92ec686f"),
    ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ("WORLD_SIZE", "4"),
];

const OPEN_MPI: &[(&str, &str)] = &[
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("PMIX_NAMESPACE", "prterun-vm-24432@1"),
    ("PMIX_RANK", "1"),
];

const MPICH: &[(&str, &str)] = &[
    ("MPI_LOCALNRANKS", "2"),
    ("MPI_LOCALRANKID", "0"),
    ("PMI_FD", "9"),
    ("PMI_RANK", "2"),
    ("PMI_SIZE", "4"),
];

const SLURM: &[(&str, &str)] = &[
    ("SLURM_JOB_ID", "17"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_NODEID", "3"),
    ("SLURM_NTASKS", "9"),
    ("SLURM_PROCID", "6"),
    ("SLURM_STEP_ID", "2"),
    ("SLURM_STEP_NUM_TASKS", "7"),
    ("SLURM_STEP_TASKS_PER_NODE", "2(x3),1"),
];

const OURS: &[(&str, &str)] = &[("COMM_RANK", "0"), ("COMM_WORLD_SIZE", "3")];

#[test]
fn nobody_says_anything() {
    assert_eq!(of(&[]).unwrap(), None);
    // What scripts set for other purposes.
    assert_eq!(of(&[("WORLD_SIZE", "4"), ("MASTER_PORT", "1"), ("MASTER_ADDR", "h")]).unwrap(), None);
    assert_eq!(of(&[("RANK", "4")]).unwrap(), None);
    // The script of a job, which is no rank.
    assert_eq!(of(&[("SLURM_JOB_ID", "1"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]).unwrap(), None);
}

#[test]
fn each_launcher_says_who_this_is() {
    let env = found(TORCHRUN);
    assert_eq!((env.launcher, place(&env)), (Launcher::Torchrun, (3, 4, Some(1), Some(2))));
    assert_eq!((env.master_addr.as_deref(), env.master_port), (Some("localhost"), Some(35399)));
    assert_eq!((env.job.as_deref(), env.serves_store), (Some("TORCHELASTIC_RUN_ID=92ec686f:35399"), true));
    let env = found(OPEN_MPI);
    assert_eq!((env.launcher, place(&env)), (Launcher::OpenMpi, (1, 2, Some(1), Some(2))));
    assert_eq!(env.job.as_deref(), Some("PMIX_NAMESPACE=prterun-vm-24432@1"));
    assert_eq!((env.master_addr, env.master_port, env.serves_store), (None, None, false));
    let env = found(MPICH);
    assert_eq!((env.launcher, place(&env)), (Launcher::Pmi, (2, 4, Some(0), Some(2))));
    let env = found(SLURM);
    assert_eq!((env.launcher, place(&env)), (Launcher::Slurm, (6, 7, Some(0), Some(1))));
    assert_eq!(env.job.as_deref(), Some("slurm=17.2"));
    let env = found(OURS);
    assert_eq!((env.launcher, place(&env), env.job), (Launcher::Comm, (0, 3, None, None), None));
    let env = found(&[SLURM, &[("PMIX_RANK", "6"), ("PMIX_NAMESPACE", "slurm.pmix.17.2")]].concat());
    assert_eq!((env.launcher, place(&env)), (Launcher::Pmix, (6, 7, Some(0), Some(1))));
}

#[test]
fn the_inner_launcher_knows() {
    // In the order of the table, each started by all that come after it, with other numbers.
    let all = [OURS, TORCHRUN, OPEN_MPI, MPICH, SLURM];
    let launchers = [Launcher::Comm, Launcher::Torchrun, Launcher::OpenMpi, Launcher::Pmi, Launcher::Slurm];
    for (first, launcher) in launchers.into_iter().enumerate() {
        assert_eq!(found(&all[first..].concat()).launcher, launcher);
    }
    // Where ranks meet may be said apart from that.
    let env = found(&[OPEN_MPI, &[("MASTER_ADDR", "host"), ("MASTER_PORT", "1")]].concat());
    assert_eq!((env.master_addr.as_deref(), env.master_port), (Some("host"), Some(1)));
    let ours = [("COMM_MASTER_ADDR", "ours"), ("COMM_MASTER_PORT", "2"), ("COMM_INSTANCE_ID", "job")];
    let env = found(&[TORCHRUN, &ours].concat());
    assert_eq!((env.master_addr.as_deref(), env.master_port), (Some("ours"), Some(2)));
    // There the agent serves nothing.
    assert_eq!((env.rank, env.job.as_deref(), env.serves_store), (3, Some("job"), false));
}

#[test]
fn what_contradicts_itself_is_an_error_that_names_it() {
    refused(
        &[("COMM_RANK", "3"), ("COMM_WORLD_SIZE", "3")],
        "COMM_RANK=3 and COMM_WORLD_SIZE=3 cannot both be",
    );
    refused(&[("COMM_RANK", "0"), ("COMM_WORLD_SIZE", "0")], "COMM_RANK=0 and COMM_WORLD_SIZE=0");
    refused(&[("COMM_RANK", "0")], "COMM_WORLD_SIZE is not set, though COMM_RANK is");
    refused(&[("COMM_WORLD_SIZE", "2")], "COMM_RANK is not set, though COMM_WORLD_SIZE is");
    refused(&[("COMM_LOCAL_RANK", "2")], "COMM_RANK is not set, though COMM_LOCAL_RANK is");
    refused(
        &[("TORCHELASTIC_RUN_ID", "x"), ("RANK", "1")],
        "WORLD_SIZE is not set, though TORCHELASTIC_RUN_ID is",
    );
    let local = |rank, size| [OURS, &[("COMM_LOCAL_RANK", rank), ("COMM_LOCAL_WORLD_SIZE", size)]].concat();
    refused(&local("2", "2"), "COMM_LOCAL_RANK=2 and COMM_LOCAL_WORLD_SIZE=2 cannot both be");
    refused(&local("0", "4"), "COMM_LOCAL_WORLD_SIZE=4 and COMM_WORLD_SIZE=3 cannot both be");
    let mpi = |rank| [&OPEN_MPI[..5], &[("PMIX_RANK", rank)]].concat();
    refused(&mpi("0"), "OMPI_COMM_WORLD_RANK=1 and PMIX_RANK=0 contradict each other");
    refused(
        &[("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "x")],
        "SLURM_STEP_NUM_TASKS is not set, though PMIX_RANK is",
    );
    refused(&[("PMI_RANK", "0")], "PMI_SIZE is not set");
}

#[test]
fn what_cannot_be_read_is_an_error_that_names_it() {
    for wrong in ["-1", "x", "1.0", " 1", "99999999999999999999"] {
        refused(
            &[("COMM_RANK", wrong), ("COMM_WORLD_SIZE", "2")],
            &format!("COMM_RANK={wrong:?} cannot be used"),
        );
    }
    refused(
        &[("COMM_RANK", ""), ("COMM_WORLD_SIZE", "2")],
        "COMM_RANK=\"\" cannot be used: it is set but empty",
    );
    for port in ["65536", "0", "-1", "http"] {
        let told = format!("COMM_MASTER_PORT={port:?} cannot be used: it is no port");
        refused(&[OURS, &[("COMM_MASTER_PORT", port)]].concat(), &told);
    }
    refused(&[OURS, &[("MASTER_ADDR", "")]].concat(), "MASTER_ADDR");
    refused(&[OURS, &[("COMM_INSTANCE_ID", "")]].concat(), "COMM_INSTANCE_ID");
    for list in ["2", "2(x3", "2(x3)", "2(y3),1", "a(x4)", "1,1,1", "2,a(x18446744073709551615)"] {
        let vars = [&SLURM[..7], &[("SLURM_STEP_TASKS_PER_NODE", list)]].concat();
        refused(&vars, "SLURM_STEP_TASKS_PER_NODE");
    }
}
