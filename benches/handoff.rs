//! One tensor from one process to another, and word back that it has been read: by key through comm-store, through a Unix
//! socket, and through iceoryx2, polling and with events.
//!
//! `cargo bench --manifest-path benches/Cargo.toml --bench handoff`. Each reader looks at the first and the last element and
//! stops the run if one is wrong. Only the socket moves the bytes; nobody writes them anew for each round.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use comm_benches::{Any, Peer, Role, run};
use comm_core::device::Stream;
use comm_core::team::Team;
use comm_core::tensor::{DType, Tensor, TensorBuf};
use comm_core::Deadline;
use comm_store::store::{self, TensorStore};
use criterion::{BenchmarkId, Criterion};
use iceoryx2::prelude::*;

const SIZES: [usize; 4] = [1 << 10, 1 << 20, 64 << 20, 1 << 30];

/// The last size that is worth the while where every byte is moved, or every sample has its memory.
const LARGEST_ELSEWHERE: usize = 64 << 20;

/// A store is reset after so many keys.
const ROUND: u64 = 50_000;

const MARK: u64 = 0x0123_4567_89ab_cdef;

fn main() -> ExitCode {
    run(|role| match role {
        Role::Measures => {
            let mut criterion = Criterion::default()
                .measurement_time(Duration::from_secs(3))
                .sample_size(30)
                .configure_from_args();
            for bytes in SIZES {
                by_key(&mut criterion, bytes)?;
                if bytes <= LARGEST_ELSEWHERE {
                    by_socket(&mut criterion, bytes)?;
                    by_iceoryx2(&mut criterion, bytes, false)?;
                    by_iceoryx2(&mut criterion, bytes, true)?;
                }
            }
            criterion.final_summary();
            Ok(())
        }
        Role::Peer(role) => {
            let (what, bytes) = role.split_once('/').ok_or("a role without a size")?;
            let bytes = bytes.parse()?;
            match what {
                "store" => key_peer(bytes),
                "socket" => socket_peer(bytes),
                "iceoryx2-poll" => iceoryx2_peer(bytes, false),
                "iceoryx2-event" => iceoryx2_peer(bytes, true),
                other => Err(format!("no role {other:?}").into()),
            }
        }
    })
}

fn measure(criterion: &mut Criterion, who: &str, bytes: usize, mut round: impl FnMut() -> Any<()>) -> Any<()> {
    let mut failed = Ok(());
    criterion.bench_with_input(BenchmarkId::new(who, bytes), &bytes, |bencher, _| {
        bencher.iter_custom(|rounds| {
            let began = Instant::now();
            for _ in 0..rounds {
                if failed.is_ok() {
                    failed = round();
                }
            }
            began.elapsed()
        });
    });
    failed
}

fn check(seen: &[u64]) -> Any<()> {
    if seen == [MARK; 2] { Ok(()) } else { Err(format!("read {seen:x?}").into()) }
}

// --- By key. An empty tensor is the end.

fn by_key(criterion: &mut Criterion, bytes: usize) -> Any<()> {
    let peer = Peer::start(&format!("store/{bytes}"))?;
    let (deadline, cpu) = (Deadline::default(), Stream::cpu());
    let team = Team::join(&format!("handoff-{bytes}"), 0, 2, deadline)?;
    let store = store::open(&team, deadline)?;
    let mut buf = TensorBuf::zeros_in(team.hub().tensors(), &[bytes / 8], DType::U64)?;
    let words = buf.as_mut_slice::<u64>()?;
    (words[0], words[bytes / 8 - 1]) = (MARK, MARK);
    let tensor = buf.freeze();
    let mut next = 0;
    measure(criterion, "comm-store", bytes, || {
        let key = next.to_string();
        store.publish(&key, &tensor, &cpu, 1, None)?;
        store.wait_consumed(&key, Deadline::default())?;
        turn(&*store, &mut next)
    })?;
    store.publish(&next.to_string(), &Tensor::from_slice::<u64>(&[0], &[])?, &cpu, 1, None)?;
    store.wait_consumed(&next.to_string(), Deadline::default())?;
    if store.stats().bytes_copied > 0 {
        return Err(format!("{} bytes were copied", store.stats().bytes_copied).into());
    }
    peer.join()
}

fn turn(store: &dyn TensorStore, next: &mut u64) -> Any<()> {
    *next += 1;
    if *next % ROUND == 0 {
        store.reset(Deadline::default())?;
    }
    Ok(())
}

fn key_peer(bytes: usize) -> Any<()> {
    let (deadline, cpu) = (Deadline::default(), Stream::cpu());
    let team = Team::join(&format!("handoff-{bytes}"), 1, 2, deadline)?;
    let store = store::open(&team, deadline)?;
    let mut next = 0;
    loop {
        let tensor = store.fetch(&next.to_string(), &cpu, Deadline::default())?;
        let Some(last) = tensor.numel().checked_sub(1) else { return Ok(()) };
        let ends = [tensor.narrow(0, 0, 1)?.to_vec::<u64>()?, tensor.narrow(0, last, 1)?.to_vec()?];
        check(&ends.concat())?;
        tensor.finish()?;
        turn(&*store, &mut next)?;
    }
}

// --- By a Unix socket: all bytes one way, one byte back.

fn socket_path(bytes: usize) -> String {
    let job = std::env::var("COMM_INSTANCE_ID").unwrap_or_default();
    std::env::temp_dir().join(format!("comm-{job}-{bytes}")).display().to_string()
}

fn by_socket(criterion: &mut Criterion, bytes: usize) -> Any<()> {
    let path = socket_path(bytes);
    let listener = UnixListener::bind(&path)?;
    let peer = Peer::start(&format!("socket/{bytes}"))?;
    let (mut stream, _) = listener.accept()?;
    std::fs::remove_file(&path)?;
    let mut payload = vec![0; bytes];
    payload[..8].copy_from_slice(&MARK.to_ne_bytes());
    payload[bytes - 8..].copy_from_slice(&MARK.to_ne_bytes());
    measure(criterion, "Unix socket", bytes, || {
        stream.write_all(&payload)?;
        Ok(stream.read_exact(&mut [0])?)
    })?;
    drop(stream);
    peer.join()
}

fn socket_peer(bytes: usize) -> Any<()> {
    let mut stream = UnixStream::connect(socket_path(bytes))?;
    let mut payload = vec![0; bytes];
    let word = |bytes: &[u8]| u64::from_ne_bytes(std::array::from_fn(|i| bytes[i]));
    while stream.read(&mut payload[..1])? == 1 {
        stream.read_exact(&mut payload[1..])?;
        check(&[word(&payload), word(&payload[bytes - 8..])])?;
        stream.write_all(&[1])?;
    }
    Ok(())
}

// --- By iceoryx2: a sample one way, a small one back. A sample whose first word is 0 is the end.

type Pair = (
    iceoryx2::port::publisher::Publisher<ipc::Service, [u64], ()>,
    iceoryx2::port::subscriber::Subscriber<ipc::Service, [u64], ()>,
);

struct Iceoryx2 {
    ports: Pair,
    events: Option<(
        iceoryx2::port::notifier::Notifier<ipc::Service>,
        iceoryx2::port::listener::Listener<ipc::Service>,
    )>,
    words: usize,
    _node: Node<ipc::Service>,
}

impl Iceoryx2 {
    /// Both ends open the same services; side 0 begins.
    fn open(side: usize, bytes: usize, by_event: bool) -> Any<Iceoryx2> {
        set_log_level(LogLevel::Error);
        let node = NodeBuilder::new().create::<ipc::Service>()?;
        let job = std::env::var("COMM_INSTANCE_ID").unwrap_or_default();
        let name = |what: &str| format!("{job}/{bytes}/{by_event}/{what}");
        let service = |what: &str| -> Any<_> {
            let builder = node.service_builder(&name(what).as_str().try_into()?).publish_subscribe::<[u64]>();
            Ok(builder.max_publishers(1).max_subscribers(1).history_size(0).subscriber_max_buffer_size(2).open_or_create()?)
        };
        let (there, back) = (service("there")?, service("back")?);
        let (out, inward) = if side == 0 { (&there, &back) } else { (&back, &there) };
        let words = if side == 0 { bytes / 8 } else { 2 };
        let publisher = out.publisher_builder().initial_max_slice_len(words).create()?;
        let subscriber = inward.subscriber_builder().create()?;
        let event = |what: &str| -> Any<_> {
            Ok(node.service_builder(&name(what).as_str().try_into()?).event().open_or_create()?)
        };
        let (there_told, back_told) = (event("told-there")?, event("told-back")?);
        let (mine, theirs) = if side == 0 { (&there_told, &back_told) } else { (&back_told, &there_told) };
        let events = if by_event {
            Some((mine.notifier_builder().create()?, theirs.listener_builder().create()?))
        } else {
            None
        };
        let listeners = usize::from(by_event);
        while out.dynamic_config().number_of_subscribers() < 1
            || inward.dynamic_config().number_of_publishers() < 1
            || mine.dynamic_config().number_of_listeners() < listeners
        {
            std::thread::yield_now();
        }
        Ok(Iceoryx2 { ports: (publisher, subscriber), events, words, _node: node })
    }

    /// Sends a sample, of which only the ends are written.
    fn send(&self, mark: u64) -> Any<()> {
        let mut sample = self.ports.0.loan_slice_uninit(self.words)?;
        let payload = sample.payload_mut();
        payload[0].write(mark);
        payload[self.words - 1].write(mark);
        // SAFETY: memory of a sample is a shared segment's, which is initialised, and any bits are a u64.
        unsafe { sample.assume_init() }.send()?;
        if let Some((notifier, _)) = &self.events {
            notifier.notify()?;
        }
        Ok(())
    }

    /// The first and the last word of the next sample.
    fn receive(&self) -> Any<[u64; 2]> {
        loop {
            if let Some(sample) = self.ports.1.receive()? {
                let payload = sample.payload();
                return Ok([payload[0], payload[payload.len() - 1]]);
            }
            match &self.events {
                Some((_, listener)) => {
                    listener.timed_wait(|_| {}, Duration::from_secs(10))?;
                }
                None => std::hint::spin_loop(),
            }
        }
    }
}

fn by_iceoryx2(criterion: &mut Criterion, bytes: usize, by_event: bool) -> Any<()> {
    let who = if by_event { "iceoryx2-event" } else { "iceoryx2-poll" };
    let peer = Peer::start(&format!("{who}/{bytes}"))?;
    let ports = Iceoryx2::open(0, bytes, by_event)?;
    measure(criterion, who, bytes, || {
        ports.send(MARK)?;
        check(&ports.receive()?)
    })?;
    ports.send(0)?;
    peer.join()
}

fn iceoryx2_peer(bytes: usize, by_event: bool) -> Any<()> {
    let ports = Iceoryx2::open(1, bytes, by_event)?;
    loop {
        let ends = ports.receive()?;
        if ends == [0, 0] {
            return Ok(());
        }
        check(&ends)?;
        ports.send(MARK)?;
    }
}
