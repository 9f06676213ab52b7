//! `docs/configuration.md` is made from the table of settings: this says when it is stale, and writes it anew with
//! `COMM_WRITE_DOCS=1 cargo test -p comm-core --test configuration`.

use std::fmt::Write;
use std::path::Path;

use comm_core::config::TABLE;

const BEFORE: &str = "\
# Configuration

<!-- Made from the table in crates/comm-core/src/config.rs by `COMM_WRITE_DOCS=1 cargo test -p comm-core --test configuration`. -->

Every default of the library, each with its environment variable.

| variable | default | meaning |
|---|---|---|
";

const AFTER: &str = "
A variable that is set but empty, or to something that cannot be used, is an error that names it; nothing falls back in
silence. The first call that needs the hub of the process (`Team::join`, for one) reads them all and returns that error.

Every blocking call takes a deadline: a `Duration` from now, an `Instant`, or `Deadline::default()`, which is
`COMM_TIMEOUT_MS` from now; those of the traits `TensorStore` and `Rendezvous` a `Deadline` alone (`.into()`). What is passed to a call counts for that call, whatever the variable says.

Instances: two programs that use the same names on one machine, by the same user, meet if they have the same
`COMM_INSTANCE_ID`. Give each job its own. Under torchrun, Open MPI, MPICH and Slurm the job's id is taken, so ranks that
these start meet without any setting. Processes of different users never meet.

Variables that only tests read are in [testing.md](testing.md).
";

fn page() -> String {
    let mut page = BEFORE.to_owned();
    for setting in TABLE {
        let _ = writeln!(page, "| `{}` | {} | {} |", setting.name, setting.default, setting.meaning);
    }
    page + AFTER
}

#[test]
fn the_page_is_what_the_table_says() -> std::io::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    if std::env::var_os("COMM_WRITE_DOCS").is_some() {
        return std::fs::write(path, page());
    }
    let found = std::fs::read_to_string(path)?;
    assert!(
        found == page(),
        "docs/configuration.md is stale; write it anew: \
         COMM_WRITE_DOCS=1 cargo test -p comm-core --test configuration"
    );
    Ok(())
}

#[test]
fn no_cell_of_the_table_breaks_it() {
    for setting in TABLE {
        let cells = [setting.name, setting.default, setting.meaning];
        assert!(cells.iter().all(|cell| !cell.is_empty() && !cell.contains(['|', '\n'])), "{setting:?}");
    }
}
