//! Cases that must not pass, and the run that looks at how they are reported.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::time::Duration;

use comm_testkit::{Case, LauncherCtx, RankResult, Row, Skip, Status, check, check_eq, done};
use serde_json::{Value, json};

use crate::BROKEN;
use crate::launches::exit_after_thread;

const LONG: Duration = Duration::from_secs(60);

/// In an order that shows that a broken launch does not take the next case with it.
pub fn cases() -> Vec<Case> {
    let good = |name: &str| Case::ranks("broken", name, |_| done());
    vec![
        good("good/1"),
        Case::ranks(
            "broken",
            "error",
            |ctx| if ctx.rank() == 1 { Err("one is wrong".into()) } else { done() },
        ),
        good("good/2"),
        Case::ranks("broken", "panic", |ctx| if ctx.rank() == 2 { panic!("two panics") } else { done() }),
        good("good/3"),
        Case::ranks("broken", "hang", |ctx| {
            if ctx.rank() == 0 {
                std::thread::sleep(LONG);
            }
            done()
        })
        .limit(Duration::from_millis(300)),
        good("good/4"),
        Case::ranks("broken", "exit", |ctx| if ctx.rank() == 1 { std::process::exit(0) } else { done() }),
        Case::ranks("broken", "abort", |ctx| if ctx.rank() == 1 { std::process::abort() } else { done() }),
        Case::ranks("broken", "good/5", |ctx| Ok(json!({ "rank": ctx.rank() }))),
        Case::ranks("broken", "half/skipped", |ctx| {
            if ctx.rank() == 1 { Err(Skip::because("half")) } else { done() }
        }),
        Case::ranks("broken", "skipped", |_| Err(Skip::because("nothing to see"))),
        // Broken after its case is over: the next case meets it.
        Case::ranks("broken", "late/exit", |ctx| {
            if ctx.rank() == 1 {
                std::thread::spawn(|| {
                    std::thread::sleep(Duration::from_millis(100));
                    std::process::exit(4)
                });
            }
            done()
        }),
        Case::ranks("broken", "after/late/exit", |_| {
            std::thread::sleep(Duration::from_millis(400));
            done()
        }),
        // Broken when all cases are over: the launch as a whole must not pass.
        Case::ranks("broken", "last", |ctx| {
            if ctx.rank() == 1 {
                exit_after_thread(3);
            }
            done()
        }),
        Case::launcher("broken", "launcher/error", |_| Err("the launcher is wrong".into())),
        Case::launcher("broken", "launcher/panic", |_| panic!("the launcher panics")),
        Case::launcher("broken", "launcher/hang", |ctx| {
            let running = ctx.launch("sleeps").spawn()?;
            let reports = running.wait(LONG);
            Err(format!("rank 0: {}", reports[0].outcome).into())
        })
        .limit(Duration::from_millis(300)),
        Case::launcher("broken", "launcher/skipped", |_| Err(Skip::because("not here"))),
        Case::launcher("broken", "launcher/good", |_| Ok(json!(7))),
    ]
}

fn again(flags: &[&str], broken: bool) -> std::io::Result<Output> {
    let mut command = Command::new("/proc/self/exe");
    command.args(flags).env_remove(BROKEN);
    if broken {
        command.env(BROKEN, "1");
    }
    let die_with_me =
        || Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?);
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(die_with_me) };
    command.output()
}

pub fn are_reported(ctx: &LauncherCtx) -> RankResult {
    let out = again(&["--world", "3", "--layout", "processes", "--json", "-", "--seed", "5"], true)?;
    let log = String::from_utf8_lossy(&out.stderr).into_owned();
    check_eq!(out.status.code(), Some(1), "{log}");
    let rows: Vec<Row> = serde_json::from_slice(&out.stdout).map_err(|e| format!("{e}: {log}"))?;
    let expected = [
        ("good/1", Status::Ok, ""),
        ("error", Status::Failed, "rank 1: one is wrong"),
        ("good/2", Status::Ok, ""),
        ("panic", Status::Failed, "rank 2 panicked: two panics at "),
        ("good/3", Status::Ok, ""),
        ("hang", Status::Hung, "rank 0: hung (in broken/hang for "),
        ("good/4", Status::Ok, ""),
        ("exit", Status::Failed, "rank 1: process exited with 0"),
        ("abort", Status::Failed, "rank 1: process killed by signal 6"),
        ("good/5", Status::Ok, ""),
        ("half/skipped", Status::Failed, "1 of 3 ranks skipped it"),
        ("skipped", Status::Skipped, "nothing to see"),
        ("late/exit", Status::Ok, ""),
        ("after/late/exit", Status::Failed, "rank 1: process exited with 4"),
        ("last", Status::Ok, ""),
        ("launch/end", Status::Failed, "rank 1: process exited with 3"),
        ("launcher/error", Status::Failed, "the launcher is wrong"),
        ("launcher/panic", Status::Failed, "the launcher panics"),
        ("launcher/hang", Status::Hung, "killed by signal 9"),
        ("launcher/skipped", Status::Skipped, "not here"),
        ("launcher/good", Status::Ok, ""),
    ];
    for (row, (case, status, reason)) in rows.iter().zip(expected) {
        check_eq!((row.case.as_str(), row.status), (case, status), "{:?}", row.reason);
        check_eq!(row.reason.is_some(), !reason.is_empty());
        check!(row.reason.as_deref().unwrap_or_default().contains(reason), "{case}: {:?}", row.reason);
        check_eq!((row.world, row.seed, row.device.as_str()), (3, 5, "cpu"));
        let value = match case {
            "good/5" => json!({ "rank": 0 }),
            "launcher/good" => json!(7),
            _ => Value::Null,
        };
        check_eq!(row.value, value, "{case}");
    }
    check_eq!(rows.len(), expected.len());
    let count = |wanted: &[Status]| expected.iter().filter(|(_, s, _)| wanted.contains(s)).count();
    let last = format!(
        "{} passed, {} failed, {} skipped",
        count(&[Status::Ok]),
        count(&[Status::Failed, Status::Hung]),
        count(&[Status::Skipped])
    );
    check_eq!(log.lines().last(), Some(last.as_str()));

    ctx.progress("the broken cases are reported as what they are");
    done()
}

pub fn command_line(_: &LauncherCtx) -> RankResult {
    for flags in [
        &["--no-such-flag"][..],
        &["--world", "0"],
        &["--filter", "no/such/case"],
        &["--world", "2", "--layout", "mixed"],
        &["--device", "cuda"],
        &["--backend", "no-such"],
        &["--json", "/no/such/dir/rows.json", "--filter", "ranks/identity"],
    ] {
        let out = again(flags, false)?;
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        check_eq!(out.status.code(), Some(2), "{flags:?}: {text}");
        check!(text.starts_with("error: ") && text.trim_end().lines().count() == 1, "{flags:?}: {text}");
        check!(out.stdout.is_empty());
    }
    let out = again(&["--filter", "ranks/identity", "--world", "2,1", "--layout", "threads"], false)?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    check_eq!((out.status.code(), text.lines().last()), (Some(0), Some("2 passed, 0 failed, 0 skipped")));
    for (flags, rows) in [(&[][..], 4), (&["--world", "3,5"], 2)] {
        let flags = [&["--filter", "ranks/world/one-as-well", "--layout", "threads"], flags].concat();
        let out = again(&flags, false)?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let last = format!("{rows} passed, 0 failed, 0 skipped");
        check_eq!((out.status.code(), text.lines().last()), (Some(0), Some(last.as_str())), "{flags:?}");
    }
    let out = again(&["--list"], false)?;
    check!(String::from_utf8_lossy(&out.stdout).contains("ranks/identity"));
    let out = again(&["no_unit_test_of_this_name"], false)?;
    check_eq!(out.status.code(), Some(0), "cargo test NAME goes to all targets");
    done()
}
