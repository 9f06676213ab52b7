//! Of two workers one is killed: before, while and after it sets something, and while all wait.

use comm_core::error::BrokenHow;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_core::{Error, Kind};
use comm_promise::{Future, POINTS, Promise, Ticket};
use comm_testkit::fault::Fault;
use comm_testkit::report::{busy, in_time, tell};
use comm_testkit::witness::Witness;
use comm_testkit::{
    Case, LauncherCtx, Program, RankCtx, RankResult, Running, block_on, check, check_eq, done, eventually,
    probe,
};
use serde_json::{Value, json};

use super::{SOON, case};
use crate::support::{Any, Scene, in_vain, is_broken};

pub const PROGRAMS: &[Program] = &[WORKERS, WAITING, WOKEN, CROWDED];

/// Rank 0 asks rank 1 and rank 2 for three values each.
const WORKERS: Program = Program { name: "promise-workers", run: workers };
/// As above, and rank 1 does nothing.
const WAITING: Program = Program { name: "promise-waiting", run: waiting };

/// Rank 0 awaits what rank 1 sets.
const WOKEN: Program = Program { name: "promise-woken", run: woken };

/// Ranks 1 and 2 hold one promise as often as it can be held.
const CROWDED: Program = Program { name: "promise-crowded", run: crowded };

/// Passed only where somebody waits.
const RINGING: &str = "promise.ringing";

/// Elements of a value: each lies in a segment that its worker makes for it.
const LARGE: usize = 10 << 20;

pub fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = POINTS
        .iter()
        .filter(|&&point| point != RINGING)
        .map(|&point| case(format!("kill/-/-/{point}"), move |ctx| killed_at(ctx, point)))
        .collect();
    all.push(case("kill/-/-/while-all-wait", killed_while_all_wait));
    all.push(case(format!("kill/-/-/{RINGING}"), killed_while_it_wakes));
    all.push(case("kill/-/-/makes-room", killed_and_makes_room));
    all
}

/// What each value of the victim comes to when it is killed at the second hit of a point.
fn expected(point: &str) -> [&'static str; 3] {
    match point {
        // The third ticket is nobody's yet.
        "promise.claimed" => ["died", "died", "unclaimed"],
        "promise.packed" | "promise.begun" | "promise.writing" => ["value", "died", "died"],
        "promise.set" => ["value", "value", "died"],
        // It drops them one by one.
        "promise.dropped" => ["dropped", "died", "died"],
        other => panic!("what is to come of {other}?"),
    }
}

fn killed_at(ctx: &LauncherCtx, point: &'static str) -> RankResult {
    let fault = Fault::at(point).rank(1).hit(2).kill();
    let launch = ctx.launch(WORKERS.name).arg(json!({"drops": point == "promise.dropped"}));
    let running = launch.fault(fault).limit(SOON).spawn()?;
    running.wait_exit(1, SOON)?;
    // Only when it is gone for good, memory and sockets and all, are values read and the others set.
    running.go("victim is gone")?;
    let reports = running.wait(SOON);
    check!(reports[0].outcome.is_ok(), "the client: {}", reports[0].outcome);
    check!(reports[2].outcome.is_ok(), "the other worker: {}", reports[2].outcome);
    let seen = &reports[0].note("seen").ok_or("the client says what it has seen")?.value;
    check_eq!(seen, &json!(expected(point)));
    done()
}

/// A tensor in a segment of its own.
fn value(s: &Scene, n: usize) -> Any<Tensor> {
    let mut buf = TensorBuf::zeros_in(s.team.hub().tensors(), &[LARGE], DType::F32)?;
    buf.as_mut_slice::<f32>()?.fill(n as f32);
    Ok(buf.freeze())
}

fn is_value(tensor: &Tensor, n: usize) -> bool {
    tensor.shape() == [LARGE]
        && tensor.to_vec::<f32>().is_ok_and(|values| values.iter().all(|&x| x == n as f32))
}

/// Three promises for each of ranks 1 and 2: their futures at rank 0, their tickets everywhere.
#[allow(clippy::type_complexity, reason = "the futures of both, the tickets of both")]
fn asked(s: &Scene) -> Any<([Vec<Future<Tensor>>; 2], [Vec<Ticket<Tensor>>; 2])> {
    let (mut futures, mut tickets) = ([vec![], vec![]], [vec![], vec![]]);
    for n in 0..6 {
        let promise = s.is_client().then(|| Promise::<Tensor>::new(Kind::Host)).transpose()?;
        if let Some(promise) = &promise {
            futures[n / 3].push(promise.future()?);
        }
        tickets[n / 3].push(s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?);
    }
    Ok((futures, tickets))
}

fn workers(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let (futures, tickets) = asked(&s)?;
    // From here on there is no team.
    match ctx.rank() {
        0 => {
            ctx.await_go("victim is gone")?;
            let seen: Vec<Value> =
                futures[0].iter().enumerate().map(|(n, future)| outcome(&s, n, future)).collect();
            ctx.note_value("seen", seen);
            let before = probe::mappings()?;
            let [_, others] = futures;
            for (n, future) in others.into_iter().enumerate() {
                // By threads and by tasks.
                let value = if n % 2 == 0 { future.get(s.by)? } else { block_on(future)? };
                check!(is_value(&value, n), "the other worker's number {n}");
            }
            // What the dead one had shared goes with the last value of it.
            check!(probe::mappings()? <= before + 8, "mappings");
        }
        1 => {
            let promises = tickets[0]
                .iter()
                .map(|ticket| Promise::attach(ticket, s.by))
                .collect::<Result<Vec<_>, _>>()?;
            if ctx.args()["drops"] == json!(true) {
                promises.into_iter().for_each(drop);
            } else {
                for (n, promise) in promises.iter().enumerate() {
                    promise.set(value(&s, n)?)?;
                }
            }
            return Err("it lives".into());
        }
        _ => {
            let promises = tickets[1]
                .iter()
                .map(|ticket| Promise::attach(ticket, s.by))
                .collect::<Result<Vec<_>, _>>()?;
            ctx.await_go("victim is gone")?;
            for (n, promise) in promises.iter().enumerate().rev() {
                promise.set(value(&s, n)?)?;
            }
            // Until all have been read: what they lie in is this process's, and may go with it.
        }
    }
    done()
}

fn outcome(s: &Scene, n: usize, future: &Future<Tensor>) -> Value {
    match future.wait(std::time::Duration::from_millis(200)) {
        Ok(Some(value)) if is_value(&value, n) => json!("value"),
        Ok(Some(value)) => json!(format!("another value: {value:?}")),
        Ok(None) if in_vain(future).is_ok_and(|said| said.contains("unclaimed")) => json!("unclaimed"),
        Ok(None) => json!("pending"),
        Err(Error::BrokenPromise { how: BrokenHow::Died, pid: Some(_), .. }) => json!("died"),
        Err(Error::BrokenPromise { how: BrokenHow::Dropped, pid: Some(_), .. }) => json!("dropped"),
        Err(other) => json!(format!("{other:?} after {:?}", s.by)),
    }
}

fn killed_while_all_wait(ctx: &LauncherCtx) -> RankResult {
    let mut slowest = comm_testkit::report::Notice::default();
    for _ in 0..if ctx.full() { 50 } else { 5 } {
        let running: Running = ctx.launch(WAITING.name).limit(SOON).spawn()?;
        let pid = running.pids()[1];
        running.wait_note(0, "waiting", SOON)?;
        running.wait_note(1, "holding", SOON)?;
        let witness = Witness::start();
        let killed = running.kill(1)?;
        running.wait_exit(1, SOON)?;
        let told = running.wait_note(0, "error", SOON)?;
        running.go("victim is gone")?;
        let reports = running.wait(SOON);
        check!(reports[0].outcome.is_ok(), "the client: {}", reports[0].outcome);
        check!(reports[2].outcome.is_ok(), "the other worker: {}", reports[2].outcome);
        let text = told.value["text"].as_str().unwrap_or_default().to_owned();
        check!(text.contains(&format!("died (process {pid})")), "{text}");
        slowest = slowest.max(in_time(&told, killed, &witness.gaps())?);
    }
    ctx.progress(&format!("told after up to {slowest}"));
    done()
}

fn waiting(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let (futures, tickets) = asked(&s)?;
    let promises: Vec<_> = match ctx.rank() {
        0 => vec![],
        rank => {
            tickets[rank - 1].iter().map(|ticket| Promise::attach(ticket, s.by)).collect::<Result<_, _>>()?
        }
    };
    s.all()?;
    match ctx.rank() {
        0 => {
            let [of_victim, of_other] = futures;
            let mut of_victim = of_victim.into_iter();
            let [one, two, three] = std::array::from_fn(|_| of_victim.next().unwrap());
            let waits = std::thread::spawn({
                let by = s.by;
                move || two.get(by)
            });
            let awaits = std::thread::spawn(|| block_on(three));
            let before = busy();
            ctx.note("waiting");
            let error = one.get(s.by).unwrap_err();
            tell(ctx, "get", &error, before);
            is_broken::<Tensor>(Err(error), BrokenHow::Died)?;
            is_broken(waits.join().unwrap(), BrokenHow::Died)?;
            is_broken(awaits.join().unwrap(), BrokenHow::Died)?;
            for (n, future) in of_other.iter().enumerate() {
                check!(is_value(&future.get(s.by)?, n), "the other worker's number {n}");
            }
        }
        1 => {
            ctx.note("holding");
            ctx.await_go("nothing")?;
        }
        _ => {
            ctx.await_go("victim is gone")?;
            for (n, promise) in promises.iter().enumerate() {
                promise.set(value(&s, n)?)?;
            }
        }
    }
    done()
}

/// It has set the value, and dies before it has woken whoever waits.
fn killed_while_it_wakes(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch(WOKEN.name).fault(Fault::at(RINGING).rank(1).kill()).limit(SOON).spawn()?;
    running.wait_exit(1, SOON)?;
    let reports = running.wait(SOON);
    check!(reports[0].outcome.is_ok(), "the client: {}", reports[0].outcome);
    done()
}

fn woken(ctx: &RankCtx) -> RankResult {
    let s = Scene::host(ctx)?;
    let promise = s.is_client().then(|| Promise::<Tensor>::new(Kind::Host)).transpose()?;
    let future = promise.as_ref().map(Promise::future).transpose()?;
    let ticket = s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
    let held = (ctx.rank() == 1).then(|| Promise::attach(&ticket, s.by)).transpose()?;
    let woken = future.map(|mut future| {
        // No deadline wakes it in time. The waker is there before the worker goes on.
        let (told, hears) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            block_on(std::future::poll_fn(|context| {
                let polled = std::future::Future::poll(std::pin::Pin::new(&mut future), context);
                let _ = told.send(());
                polled
            }))
        });
        let _ = hears.recv();
        thread
    });
    s.all()?;
    if let Some(held) = held {
        held.set(value(&s, 1)?)?;
        return Err("it lives".into());
    }
    if let Some(woken) = woken {
        check!(is_value(&woken.join().map_err(|_| "the task panicked")??, 1));
    }
    done()
}

/// The places of one who is dead are there for others.
fn killed_and_makes_room(ctx: &LauncherCtx) -> RankResult {
    let running = ctx.launch(CROWDED.name).limit(SOON).spawn()?;
    running.wait_note(2, "crowded", SOON)?;
    running.kill(1)?;
    running.wait_exit(1, SOON)?;
    running.go("victim is gone")?;
    let reports = running.wait(SOON);
    check!(reports[0].outcome.is_ok(), "the client: {}", reports[0].outcome);
    check!(reports[2].outcome.is_ok(), "the other worker: {}", reports[2].outcome);
    done()
}

fn crowded(ctx: &RankCtx) -> RankResult {
    const PLACES: usize = 7;
    let s = Scene::host(ctx)?;
    let promise = s.is_client().then(|| Promise::<Tensor>::new(Kind::Host)).transpose()?;
    let future = promise.as_ref().map(Promise::future).transpose()?;
    let ticket = s.ticket(0, promise.map(Promise::into_ticket).transpose()?)?;
    let attach = |times| (0..times).map(|_| Promise::attach(&ticket, s.by)).collect::<Result<Vec<_>, _>>();
    let mut all = attach([0, PLACES - 1, 1][ctx.rank()])?;
    s.all()?;
    if ctx.rank() == 1 {
        ctx.await_go("nothing")?;
    }
    if ctx.rank() == 2 {
        check!(Promise::attach(&ticket, s.by).is_err(), "it is held as often as it can be");
        ctx.note("crowded");
        ctx.await_go("victim is gone")?;
        // The home hears of it in its own time.
        eventually("there is room", || attach(1).map(|one| all.extend(one)).is_ok())?;
        all.extend(attach(PLACES - 2)?);
        all[PLACES / 2].set(value(&s, 2)?)?;
    }
    if let Some(future) = future {
        check!(is_value(&future.get(s.by)?, 2));
    }
    done()
}
