//! Bytes that are nearly requests, from several clients, in pieces, for as long as it is told. Whatever comes, the parser
//! gives the same however it is cut, and the state holds what it always does.
//!
//! `COMM_FUZZ_SECONDS` says for how long; `COMM_FUZZ_SEED` where to begin. A failure prints the seed of its round.

use std::time::{Duration, Instant};

use super::tests::Desk;
use super::*;
use crate::tcp::parser::tests::{one_of_each, requests};
use crate::tcp::parser::{Input, Parser};

/// SplitMix64: the same numbers for the same seed, everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

/// A few keys, so that requests meet.
const KEYS: [&[u8]; 6] = [b"/a", b"/b", b"/n", b"", identity::KEY, b"/a key that is longer than most"];

fn request(random: &mut Random) -> Request {
    let key = |random: &mut Random| random.pick(&KEYS).to_vec();
    let value = |random: &mut Random| match random.below(4) {
        0 => Vec::new(),
        1 => random.next().to_string().into_bytes(),
        2 => b"7".to_vec(),
        _ => vec![random.next() as u8; random.below(60)],
    };
    match random.pick(&one_of_each()) {
        Request::Set { .. } => Request::Set { key: key(random), value: value(random) },
        Request::CompareSet { .. } => {
            Request::CompareSet { key: key(random), expected: value(random), desired: value(random) }
        }
        Request::Get(_) => Request::Get(key(random)),
        Request::Add { .. } => Request::Add { key: key(random), amount: random.next() as i64 },
        Request::Check(_) => Request::Check((0..random.below(5)).map(|_| key(random)).collect()),
        Request::Wait(_) => Request::Wait((0..random.below(5)).map(|_| key(random)).collect()),
        Request::Delete(_) => Request::Delete(key(random)),
        Request::Append { .. } => Request::Append { key: key(random), value: value(random) },
        Request::MultiGet(_) => Request::MultiGet((0..random.below(5)).map(|_| key(random)).collect()),
        Request::MultiSet(_) => {
            Request::MultiSet((0..random.below(5)).map(|_| (key(random), value(random))).collect())
        }
        Request::QueuePush { .. } => Request::QueuePush { key: key(random), value: value(random) },
        Request::QueuePop(_) => Request::QueuePop(key(random)),
        Request::QueueLen(_) => Request::QueueLen(key(random)),
        Request::Barrier { .. } => Request::Barrier { key: key(random), size: random.below(4) as i64 },
        other => other,
    }
}

/// Requests as bytes, some of them not as they should be.
fn stream(random: &mut Random) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..random.below(12)).flat_map(|_| request(random).encode()).collect();
    for _ in 0..random.below(4) {
        let at = random.below(bytes.len());
        match random.below(6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 => bytes.truncate(at),
            2 => bytes.insert(at.min(bytes.len()), random.next() as u8),
            3 if at + 8 <= bytes.len() => {
                let wrong = random.pick(&[u64::MAX, 1 << 63, 1 << 31, 65, 64, 9, 1, 0]);
                bytes[at..at + 8].copy_from_slice(&wrong.to_le_bytes());
            }
            4 => drop(bytes.drain(..at)),
            5 => {
                let copy = bytes[at..].to_vec();
                bytes.extend(copy);
            }
            _ => {}
        }
    }
    bytes
}

fn pieces<'a>(random: &mut Random, bytes: &'a [u8]) -> Vec<&'a [u8]> {
    let (mut pieces, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(1 + random.below(rest.len().min(40)));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// One round: clients of one server, until each is refused or has nothing more to say.
fn round(seed: u64) -> usize {
    let mut random = Random(seed);
    let mut desk = Desk::new();
    (desk.limits.key, desk.limits.value, desk.limits.keys_per_request) = (64, 64, 4);
    (desk.limits.request, desk.limits.store, desk.limits.entries) = (512, 600, 12);
    desk.limits.lease = (random.below(2) == 0).then_some(Duration::from_secs(1));
    let streams: Vec<Vec<u8>> = (0..4).map(|_| stream(&mut random)).collect();
    for bytes in &streams {
        let in_pieces = requests(pieces(&mut random, bytes).into_iter(), &desk.limits);
        assert_eq!(in_pieces, requests([bytes.as_slice()].into_iter(), &desk.limits));
    }
    let mut clients: Vec<_> = streams
        .iter()
        .map(|bytes| Some((pieces(&mut random, bytes).into_iter(), Input::default(), Parser::default())))
        .collect();
    let mut asked = 0;
    while clients.iter().any(Option::is_some) {
        let client = random.below(clients.len());
        let Some((pieces, input, parser)) = &mut clients[client] else { continue };
        let mut gone = true;
        if let Some(piece) = pieces.next() {
            input.push(piece);
            gone = loop {
                match parser.next(input, &desk.limits) {
                    Ok(None) => break false,
                    Ok(Some(request)) => {
                        let waits = desk.state.is_waiting(client as Client) && !request.ends_wait();
                        asked += 1;
                        if waits || desk.ask(client as Client, request).is_err() {
                            break true;
                        }
                    }
                    Err(_) => break true,
                }
                assert!(parser.held() <= desk.limits.request);
            };
        }
        if gone {
            clients[client] = None;
            desk.state.forget(client as Client);
            desk.state.check(&desk.limits);
        }
        if random.below(50) == 0 {
            desk.state.sweep(random.pick(&[Duration::ZERO, Duration::from_secs(1)]));
            desk.state.check(&desk.limits);
        }
    }
    assert!(desk.state.waits.is_empty());
    asked
}

#[test]
fn fuzz() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let time = Duration::from_secs(number("COMM_FUZZ_SECONDS").unwrap_or(2));
    let first = number("COMM_FUZZ_SEED").unwrap_or_else(|| std::process::id().into());
    let (started, mut rounds, mut asked) = (Instant::now(), 0u64, 0);
    while rounds == 0 || started.elapsed() < time {
        let seed = first.wrapping_add(rounds.wrapping_mul(0x1_0000_0001));
        asked += std::panic::catch_unwind(|| round(seed)).unwrap_or_else(|cause| {
            eprintln!("the round of COMM_FUZZ_SEED={seed} fails");
            std::panic::resume_unwind(cause)
        });
        rounds += 1;
    }
    println!(
        "{rounds} rounds, {asked} requests carried out, from seed {first}, in {:.1?}",
        started.elapsed()
    );
    assert!(asked as u64 > rounds, "most of it should be requests");
}
