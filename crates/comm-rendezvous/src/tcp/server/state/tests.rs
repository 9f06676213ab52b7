//! What requests do, to one client and to several.

use super::*;

/// A server without sockets.
pub(super) struct Desk {
    pub state: State,
    pub limits: Limits,
}

impl Desk {
    pub fn new() -> Desk {
        Desk { state: State::new(b"who it is".to_vec()), limits: Limits::default() }
    }

    /// What a request is answered with, to whomever.
    pub fn ask(&mut self, client: Client, request: Request) -> Result<Answers, Refused> {
        let mut answers = Answers::new();
        let done = self.state.act(client, request, &self.limits, &mut answers);
        self.state.check(&self.limits);
        done.map(|()| answers)
    }

    /// The one answer, to the one who asks.
    fn answer(&mut self, request: Request) -> Vec<u8> {
        let mut answers = self.ask(1, request).unwrap();
        let Some((1, answer)) = answers.pop() else { panic!("{answers:?}") };
        assert!(answers.is_empty(), "{answers:?}");
        answer
    }

    fn set(&mut self, key: &str, value: &str) -> Answers {
        self.ask(9, Request::Set { key: key.into(), value: value.into() }).unwrap()
    }
}

impl State {
    /// What always holds.
    pub(super) fn check(&self, limits: &Limits) {
        let bytes = |queue: (&Vec<u8>, &VecDeque<Vec<u8>>)| {
            queue.1.iter().map(|v| queue.0.len() + v.len()).sum::<usize>()
        };
        assert_eq!(self.queued.0, self.queues.iter().map(bytes).sum::<usize>());
        assert_eq!(self.queued.1, self.queues.values().map(VecDeque::len).sum::<usize>());
        assert!(self.queues.values().all(|queue| !queue.is_empty()));
        assert!(self.queues.values().all(|queue| queue.capacity() <= FEW.max(4 * queue.len())));
        assert!(self.table.bytes() + self.queued.0 <= limits.store);
        assert!(self.table.len() + self.queued.1 <= limits.entries);
        assert!(!self.table.has(identity::KEY));
        assert!(self.touched.keys().all(|key| self.table.has(key) || self.queues.contains_key(key)));
        let mut waits = 0;
        for (client, wait) in &self.waits {
            let (lines, keys) = match wait {
                Wait::Keys(keys, bytes) => {
                    assert_eq!(*bytes, keys.iter().map(|key| cost(key)).sum::<usize>());
                    (&self.waiting, keys.iter().collect::<Vec<_>>())
                }
                Wait::Barrier(key) => (&self.barriers, vec![key]),
            };
            waits += keys.len();
            assert!(!keys.is_empty() && keys.iter().all(|key| lines[*key].contains(client)), "{client}");
        }
        let lines = || self.waiting.values().chain(self.barriers.values());
        assert_eq!(lines().map(VecDeque::len).sum::<usize>(), waits);
        assert!(lines().all(|line| !line.is_empty()));
        assert!(!self.waiting.keys().any(|key| self.table.has(key)));
    }
}

fn keys(keys: &[&str]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| key.as_bytes().to_vec()).collect()
}

/// A number and a text, as they are on the wire.
fn wire(number: i64, text: &[&str]) -> Vec<u8> {
    text.iter().fold(Writer::new().number(number), |to, text| to.text(text.as_bytes())).bytes()
}

#[test]
fn answers_are_those_of_torch() {
    let mut desk = Desk::new();
    assert!(desk.set("/a", "1").is_empty());
    assert_eq!(desk.answer(Request::Get("/a".into())), b"\x01\0\0\0\0\0\0\x001");
    assert_eq!(desk.answer(Request::Get("/none".into())), [0; 8]);
    assert_eq!(desk.answer(Request::Ping(7)), [7, 0, 0, 0]);
    assert_eq!(desk.answer(Request::Add { key: "/n".into(), amount: 5 }), wire(5, &[]));
    let exchange = |expected: &str| Request::CompareSet {
        key: "/x".into(),
        expected: expected.into(),
        desired: "v".into(),
    };
    assert_eq!(desk.answer(exchange("q")), b"\x01\0\0\0\0\0\0\0q");
    assert_eq!(desk.answer(exchange("")), b"\x01\0\0\0\0\0\0\0v");
    assert_eq!(desk.answer(Request::Check(keys(&["/a", "/x"]))), [0]);
    assert_eq!(desk.answer(Request::Check(keys(&["/a", "/zz"]))), [1]);
    assert!(desk.ask(1, Request::Append { key: "/a".into(), value: "23".into() }).unwrap().is_empty());
    assert_eq!(
        desk.answer(Request::MultiGet(keys(&["/a", "/none"]))),
        [&b"\x03\0\0\0\0\0\0\x00123"[..], &[0; 8]].concat()
    );
    assert_eq!(desk.answer(Request::NumKeys), wire(3, &[]));
    assert_eq!(desk.answer(Request::Delete("/a".into())), wire(1, &[]));
    assert_eq!(desk.answer(Request::Delete("/a".into())), wire(0, &[]));
    assert!(desk.ask(1, Request::QueuePush { key: "/q".into(), value: "v1".into() }).unwrap().is_empty());
    assert_eq!(desk.answer(Request::Check(keys(&["/q"]))), [0]);
    assert_eq!(desk.answer(Request::QueueLen("/q".into())), wire(1, &[]));
    assert_eq!(desk.answer(Request::QueuePop("/q".into())), wire(1, &["v1"]));
    assert_eq!(desk.answer(Request::QueuePop("/q".into())), wire(0, &[]));
    assert_eq!(desk.answer(Request::CancelWait), [1]);
    desk.ask(1, Request::Delete("/x".into())).unwrap();
    assert_eq!(desk.answer(Request::ListKeys), wire(1, &["/n"]));
}

#[test]
fn a_wait_ends_when_the_last_key_comes() {
    let mut desk = Desk::new();
    desk.set("a", "");
    assert_eq!(desk.ask(1, Request::Wait(keys(&["a"]))).unwrap(), [(1, vec![0])]);
    assert_eq!(desk.ask(1, Request::Wait(keys(&["a", "b", "c", "b"]))).unwrap(), []);
    assert_eq!(desk.ask(2, Request::Wait(keys(&["b"]))).unwrap(), []);
    assert!(desk.state.is_waiting(1) && desk.state.is_waiting(2) && !desk.state.is_waiting(9));
    assert_eq!(desk.set("c", ""), []);
    // It has been there, which is enough.
    desk.ask(9, Request::Delete("c".into())).unwrap();
    let mut over = desk.set("b", "");
    over.sort();
    assert_eq!(over, [(1, vec![0]), (2, vec![0])]);
    assert!(!desk.state.is_waiting(1));
    // One that has given up, or gone, gets nothing.
    desk.ask(1, Request::Wait(keys(&["d", "e"]))).unwrap();
    desk.ask(2, Request::Wait(keys(&["d"]))).unwrap();
    assert_eq!(desk.ask(1, Request::CancelWait).unwrap(), [(1, vec![1])]);
    desk.state.forget(2);
    assert_eq!(desk.set("d", ""), []);
}

#[test]
fn a_queued_value_is_for_one() {
    let mut desk = Desk::new();
    for client in [1, 2, 3] {
        desk.ask(client, Request::Wait(keys(&["q"]))).unwrap();
    }
    desk.state.forget(1);
    let push = || Request::QueuePush { key: "q".into(), value: "v".into() };
    assert_eq!(desk.ask(9, push()).unwrap(), [(2, vec![0])]);
    assert_eq!(desk.ask(9, push()).unwrap(), [(3, vec![0])]);
    assert_eq!(desk.ask(9, push()).unwrap(), []);
}

#[test]
fn a_barrier_counts_all_who_have_come() {
    let mut desk = Desk::new();
    let come = |size| Request::Barrier { key: "/bar".into(), size };
    assert_eq!(desk.ask(1, come(3)).unwrap(), []);
    // Who waits for the key is no one of those who stand at the barrier.
    assert_eq!(desk.ask(7, Request::Wait(keys(&["/bar", "/other"]))).unwrap(), []);
    assert_eq!(desk.ask(2, come(3)).unwrap(), []);
    assert_eq!(desk.ask(2, Request::CancelWait).unwrap(), [(2, vec![1])]);
    let mut over = desk.ask(3, come(3)).unwrap();
    over.sort();
    assert_eq!(over, [(1, vec![0]), (3, vec![0])]);
    assert_eq!(desk.ask(4, come(3)).unwrap(), [(4, vec![0])]);
    assert_eq!(desk.answer(Request::Get("/bar".into())), [&[1, 0, 0, 0, 0, 0, 0, 0][..], b"4"].concat());
    assert_eq!(desk.ask(1, Request::Barrier { key: "/none".into(), size: 0 }).unwrap(), [(1, vec![0])]);
    assert_eq!(desk.set("/other", ""), [(7, vec![0])]);
}

/// A barrier, a queue and a value may have the same key.
#[test]
fn one_key_of_several_things() {
    let mut desk = Desk::new();
    let come = Request::Barrier { key: "k".into(), size: 2 };
    assert_eq!(desk.ask(1, come.clone()).unwrap(), []);
    desk.ask(9, Request::Delete("k".into())).unwrap();
    desk.ask(2, Request::Wait(keys(&["k"]))).unwrap();
    let push = Request::QueuePush { key: "k".into(), value: "v".into() };
    assert_eq!(desk.ask(9, push).unwrap(), [(2, vec![0])]);
    desk.set("k", "1");
    let mut over = desk.ask(3, come).unwrap();
    over.sort();
    assert_eq!(over, [(1, vec![0]), (3, vec![0])]);
}

#[test]
fn who_it_is_can_be_asked_and_not_changed() {
    let mut desk = Desk::new();
    let key = || String::from_utf8_lossy(identity::KEY).into_owned();
    assert_eq!(desk.answer(Request::Check(vec![identity::KEY.to_vec()])), [0]);
    assert_eq!(desk.answer(Request::Wait(vec![identity::KEY.to_vec()])), [0]);
    assert!(desk.answer(Request::Get(key().into())).ends_with(b"who it is"));
    assert_eq!(desk.answer(Request::NumKeys), wire(0, &[]));
    assert_eq!(desk.answer(Request::ListKeys), wire(0, &[]));
    assert_eq!(desk.answer(Request::Delete(key().into())), wire(0, &[]));
    for request in [
        Request::Set { key: key().into(), value: vec![] },
        Request::Add { key: key().into(), amount: 1 },
        Request::CompareSet { key: key().into(), expected: vec![], desired: vec![] },
        Request::Append { key: key().into(), value: vec![] },
        Request::Barrier { key: key().into(), size: 1 },
        Request::MultiSet(vec![(key().into(), vec![])]),
    ] {
        assert!(desk.ask(1, request.clone()).is_err(), "{request:?}");
    }
}

#[test]
fn what_is_kept_is_limited() {
    let mut desk = Desk::new();
    (desk.limits.store, desk.limits.entries, desk.limits.value, desk.limits.request) = (100, 4, 50, 60);
    desk.set("a", &"x".repeat(49));
    desk.set("b", &"x".repeat(48));
    let set = |key: &str, size: usize| Request::Set { key: key.into(), value: vec![0; size] };
    assert!(desk.ask(1, set("c", 1)).is_err());
    // What takes the place of something counts what it is more.
    assert!(desk.ask(1, set("b", 49)).is_ok() && desk.ask(1, set("b", 50)).is_err());
    assert!(desk.ask(1, Request::MultiGet(keys(&["a", "b"]))).is_err(), "an answer of more than 60 bytes");
    assert!(desk.ask(1, Request::Append { key: "a".into(), value: vec![0; 2] }).is_err());
    desk.ask(1, Request::Delete("a".into())).unwrap();
    for n in 0..3 {
        desk.ask(1, Request::QueuePush { key: "q".into(), value: vec![n] }).unwrap();
    }
    assert!(desk.ask(1, Request::QueuePush { key: "q".into(), value: vec![] }).is_err(), "five things");
    assert!(desk.ask(1, set("c", 0)).is_err(), "five things");
    desk.ask(1, Request::QueuePop("q".into())).unwrap();
    assert!(desk.ask(1, set("c", 0)).is_ok());
}

/// Whoever adds to a long value byte by byte does not have it copied each time.
#[test]
fn what_is_appended_to_stays_where_it_is() {
    let mut desk = Desk::new();
    desk.set("k", &"x".repeat(1 << 20));
    let (mut at, mut moves) = (desk.state.value(b"k").as_ptr(), 0);
    for _ in 0..1000 {
        desk.ask(1, Request::Append { key: "k".into(), value: "y".into() }).unwrap();
        let now = desk.state.value(b"k").as_ptr();
        moves += usize::from(std::mem::replace(&mut at, now) != now);
    }
    assert!(desk.state.value(b"k").len() == (1 << 20) + 1000 && moves <= 2, "{moves} moves");
}

#[test]
fn a_queue_that_has_been_long_keeps_no_memory_for_it() {
    let mut desk = Desk::new();
    for _ in 0..1000 {
        desk.state.push(b"q".to_vec(), vec![], &desk.limits, &mut Answers::new()).unwrap();
    }
    for left in (0..1000).rev() {
        assert_eq!(desk.state.pop(b"q"), Some(vec![]));
        assert_eq!(desk.state.queue_length(b"q"), left);
        desk.state.check(&desk.limits);
    }
}

#[test]
fn leases_end() {
    let mut desk = Desk::new();
    desk.limits.lease = Some(Duration::from_secs(1));
    desk.set("a", "1");
    desk.ask(1, Request::QueuePush { key: "q".into(), value: vec![1] }).unwrap();
    desk.state.sweep(Duration::from_secs(1000));
    assert_eq!(desk.answer(Request::NumKeys), wire(1, &[]));
    let before = Instant::now();
    while before.elapsed() < Duration::from_millis(20) {
        std::hint::spin_loop();
    }
    // Asking for it renews it.
    desk.set("b", "1");
    desk.answer(Request::Get("b".into()));
    desk.state.sweep(Duration::from_millis(20).min(before.elapsed()));
    desk.state.check(&desk.limits);
    assert_eq!(desk.answer(Request::Check(keys(&["a"]))), [1]);
    assert_eq!(desk.answer(Request::QueueLen("q".into())), wire(0, &[]));
    desk.state.sweep(Duration::ZERO);
    assert_eq!(desk.answer(Request::NumKeys), wire(0, &[]));
    assert!(desk.state.touched.is_empty());
}

#[test]
fn of_keys_that_are_not_there_nothing_is_kept() {
    let mut desk = Desk::new();
    desk.limits.lease = Some(Duration::from_secs(1));
    for n in 0..100 {
        let key: Vec<u8> = format!("no-{n}").into();
        desk.answer(Request::Get(key.clone()));
        desk.answer(Request::MultiGet(vec![key.clone()]));
        desk.answer(Request::CompareSet {
            key: key.clone(),
            expected: b"1".to_vec(),
            desired: b"2".to_vec(),
        });
        desk.answer(Request::Delete(key.clone()));
        desk.ask(1, Request::QueuePush { key: key.clone(), value: vec![1] }).unwrap();
        desk.answer(Request::QueuePop(key));
    }
    assert!(desk.state.touched.is_empty());
}

#[test]
fn what_a_wait_keeps_is_counted() {
    let mut desk = Desk::new();
    let wanted: Vec<Vec<u8>> = (0..1000).map(|n| format!("{n:01000}").into()).collect();
    assert_eq!(desk.ask(2, Request::Wait(wanted.clone())).unwrap(), []);
    assert!(desk.state.held(2) > 2_000_000);
    for key in &wanted[1..] {
        desk.ask(1, Request::Set { key: key.clone(), value: vec![] }).unwrap();
    }
    assert_eq!(desk.state.held(2), cost(&wanted[0]));
    desk.ask(3, Request::Barrier { key: wanted[1].clone(), size: 2 }).unwrap_err();
    desk.ask(3, Request::Barrier { key: b"all".to_vec(), size: 2 }).unwrap();
    assert_eq!(desk.state.held(3), cost(b"all"));
    desk.state.forget(2);
    desk.state.forget(3);
    assert_eq!((desk.state.held(2), desk.state.held(3)), (0, 0));
}
