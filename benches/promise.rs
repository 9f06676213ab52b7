//! From asking for a value to having it: through comm-promise, a channel of crossbeam, a oneshot of tokio, and a Unix socket.
//!
//! `cargo bench --manifest-path benches/Cargo.toml --bench promise`. In one thread, from one thread to another, and from one process
//! to another; there the request goes by a Unix socket for all, with a ticket in it or without. Every answer is looked at.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use comm_benches::{Any, Peer, Role, run};
use comm_core::hub::Hub;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_core::{Deadline, Kind};
use comm_promise::{Promise, Ticket};
use criterion::Criterion;
use crossbeam_channel::{Sender, bounded, unbounded};
use tokio::sync::oneshot;

const SIZES: [usize; 3] = [8, 1 << 10, 1 << 20];
const MARK: u64 = 0x0123_4567_89ab_cdef;

fn main() -> ExitCode {
    run(|role| match role {
        Role::Measures => {
            let mut criterion = Criterion::default()
                .measurement_time(Duration::from_secs(3))
                .sample_size(30)
                .configure_from_args();
            in_one_thread(&mut criterion)?;
            between_threads(&mut criterion)?;
            for bytes in SIZES {
                between_processes(&mut criterion, bytes)?;
            }
            criterion.final_summary();
            Ok(())
        }
        Role::Peer(role) => {
            let (what, bytes) = role.split_once('/').ok_or("a role without a size")?;
            match what {
                "promise" => promise_peer(bytes.parse()?),
                "socket" => socket_peer(bytes.parse()?),
                other => Err(format!("no role {other:?}").into()),
            }
        }
    })
}

fn measure(
    criterion: &mut Criterion,
    (group, who): (&str, &str),
    mut round: impl FnMut() -> Any<u64>,
) -> Any<()> {
    let mut failed = Ok(());
    criterion.bench_function(&format!("{group}/{who}"), |bencher| {
        bencher.iter_custom(|rounds| {
            let began = Instant::now();
            for _ in 0..rounds {
                if failed.is_ok() {
                    failed = round()
                        .and_then(|seen| if seen == MARK { Ok(()) } else { Err(format!("{seen:x}").into()) });
                }
            }
            began.elapsed()
        });
    });
    failed
}

// --- In one thread: made, set, read, dropped.

fn in_one_thread(criterion: &mut Criterion) -> Any<()> {
    let id = |who: &'static str| ("one thread", who);
    measure(criterion, id("comm-promise"), || {
        let promise = Promise::process();
        let future = promise.future()?;
        promise.set(MARK)?;
        Ok(future.get(Deadline::default())?)
    })?;
    measure(criterion, id("crossbeam-channel"), || {
        let (sender, receiver) = bounded(1);
        sender.send(MARK)?;
        Ok(receiver.recv()?)
    })?;
    measure(criterion, id("tokio-oneshot"), || {
        let (sender, receiver) = oneshot::channel();
        sender.send(MARK).map_err(|_| "nobody receives")?;
        Ok(receiver.blocking_recv()?)
    })
}

// --- Between threads: the other one is asked by a channel, and answers.

/// A thread that does with whatever it is sent what `answer` says, until nobody sends any more.
fn other_thread<T: Send + 'static>(answer: impl Fn(T) + Send + 'static) -> (Sender<T>, JoinHandle<()>) {
    let (sender, receiver) = unbounded();
    (sender, std::thread::spawn(move || receiver.into_iter().for_each(answer)))
}

fn ended(thread: JoinHandle<()>) -> Any<()> {
    thread.join().map_err(|_| "the other thread panicked".into())
}

fn between_threads(criterion: &mut Criterion) -> Any<()> {
    let id = |who: &'static str| ("two threads", who);
    let (requests, thread) = other_thread(|promise: Promise<u64>| drop(promise.set(MARK)));
    measure(criterion, id("comm-promise"), || {
        let promise = Promise::process();
        let future = promise.future()?;
        requests.send(promise)?;
        Ok(future.get(Deadline::default())?)
    })?;
    drop(requests);
    ended(thread)?;
    let (requests, thread) = other_thread(|sender: Sender<u64>| {
        let _ = sender.send(MARK);
    });
    measure(criterion, id("crossbeam-channel"), || {
        let (sender, receiver) = bounded(1);
        requests.send(sender)?;
        Ok(receiver.recv()?)
    })?;
    drop(requests);
    ended(thread)?;
    let (requests, thread) = other_thread(|sender: oneshot::Sender<u64>| {
        let _ = sender.send(MARK);
    });
    measure(criterion, id("tokio-oneshot"), || {
        let (sender, receiver) = oneshot::channel();
        requests.send(sender)?;
        Ok(receiver.blocking_recv()?)
    })?;
    drop(requests);
    ended(thread)
}

// --- Between processes. Nobody writes the bytes of the answer anew for each round.

fn socket_path(what: &str, bytes: usize) -> Any<std::path::PathBuf> {
    let job = std::env::var("COMM_INSTANCE_ID")?;
    Ok(std::env::temp_dir().join(format!("{job}-{what}-{bytes}.socket")))
}

/// The connection with a peer in a role. The name goes as soon as the two have met.
fn connect(what: &str, bytes: usize) -> Any<(Peer, UnixStream)> {
    let path = socket_path(what, bytes)?;
    let listener = UnixListener::bind(&path)?;
    let peer = Peer::start(&format!("{what}/{bytes}"))?;
    let stream = listener.accept()?.0;
    std::fs::remove_file(path)?;
    Ok((peer, stream))
}

fn between_processes(criterion: &mut Criterion, bytes: usize) -> Any<()> {
    let group = format!("two processes, {bytes} bytes");
    let (peer, mut stream) = connect("promise", bytes)?;
    measure(criterion, (&group, "comm-promise"), || {
        let promise = Promise::<Tensor>::new(Kind::Host)?;
        let future = promise.future()?;
        let ticket = promise.into_ticket()?.to_bytes();
        stream.write_all(&[&[ticket.len() as u8], &ticket[..]].concat())?;
        let value = future.get(Deadline::default())?;
        Ok(value.narrow(0, bytes / 8 - 1, 1)?.to_vec::<u64>()?[0])
    })?;
    drop(stream);
    peer.join()?;
    let (peer, mut stream) = connect("socket", bytes)?;
    let mut answer = vec![0; bytes];
    measure(criterion, (&group, "unix-socket"), || {
        stream.write_all(&[1])?;
        stream.read_exact(&mut answer)?;
        Ok(u64::from_ne_bytes(answer[bytes - 8..].try_into()?))
    })?;
    drop(stream);
    peer.join()
}

fn promise_peer(bytes: usize) -> Any<()> {
    let mut stream = UnixStream::connect(socket_path("promise", bytes)?)?;
    let mut value = TensorBuf::zeros_in(Hub::get()?.tensors(), &[bytes / 8], DType::U64)?;
    value.as_mut_slice::<u64>()?[bytes / 8 - 1] = MARK;
    let value = value.freeze();
    let mut len = [0];
    while stream.read(&mut len)? == 1 {
        let mut ticket = vec![0; len[0].into()];
        stream.read_exact(&mut ticket)?;
        Promise::attach(&Ticket::from_bytes(&ticket)?, Deadline::default())?.set(value.clone())?;
    }
    Ok(())
}

fn socket_peer(bytes: usize) -> Any<()> {
    let mut stream = UnixStream::connect(socket_path("socket", bytes)?)?;
    let mut value = vec![0; bytes];
    value[bytes - 8..].copy_from_slice(&MARK.to_ne_bytes());
    while stream.read(&mut [0])? == 1 {
        stream.write_all(&value)?;
    }
    Ok(())
}
