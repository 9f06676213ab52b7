//! Requests in pieces, cut, and with wrong lengths.

use super::*;
use crate::tcp::request::VALIDATE;

/// One of each.
pub(crate) fn one_of_each() -> Vec<Request> {
    let text = |text: &str| text.as_bytes().to_vec();
    let (key, value) = (text("/a key"), text("a value"));
    let keys = vec![text("/one"), text(""), text("/two")];
    vec![
        Request::Validate(0x3C85_F7CE),
        Request::Ping(0xDEAD_BEEF),
        Request::Set { key: key.clone(), value: value.clone() },
        Request::CompareSet { key: key.clone(), expected: text(""), desired: value.clone() },
        Request::Get(key.clone()),
        Request::Add { key: key.clone(), amount: -5 },
        Request::Check(keys.clone()),
        Request::Wait(keys.clone()),
        Request::CancelWait,
        Request::NumKeys,
        Request::Delete(key.clone()),
        Request::Append { key: key.clone(), value: value.clone() },
        Request::MultiGet(keys.clone()),
        Request::MultiGet(vec![]),
        Request::MultiSet(vec![(key.clone(), value.clone()), (text("/b"), text(""))]),
        Request::QueuePush { key: key.clone(), value },
        Request::QueuePop(key.clone()),
        Request::QueueLen(key.clone()),
        Request::ListKeys,
        Request::Barrier { key, size: 3 },
    ]
}

/// What comes of bytes that come in these pieces: requests, and whether that was all.
pub(crate) fn requests<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    limits: &Limits,
) -> (Vec<Request>, Result<bool, Refused>) {
    let (mut input, mut parser, mut found) = (Input::default(), Parser::default(), Vec::new());
    for piece in pieces {
        input.push(piece);
        loop {
            match parser.next(&mut input, limits) {
                Ok(Some(request)) => found.push(request),
                Ok(None) => break,
                Err(refused) => return (found, Err(refused)),
            }
        }
    }
    (found, Ok(!parser.is_inside() && input.len() == 0))
}

#[test]
fn each_is_itself_in_any_pieces() {
    let limits = Limits::default();
    let all = one_of_each();
    let bytes: Vec<u8> = all.iter().flat_map(Request::encode).collect();
    for size in [1, 2, 3, 7, 8, 9, 64, bytes.len()] {
        assert_eq!(requests(bytes.chunks(size), &limits), (all.clone(), Ok(true)), "in pieces of {size}");
    }
}

#[test]
fn each_cut_at_each_byte_is_no_request() {
    let limits = Limits::default();
    for request in one_of_each() {
        let bytes = request.encode();
        for cut in 0..bytes.len() {
            let cut = requests([&bytes[..cut]].into_iter(), &limits);
            assert_eq!(cut.0, [], "{request:?}");
            assert!(cut.1.is_ok(), "{request:?}");
        }
    }
}

/// Wherever a length or a number of texts is, every wrong one is refused, or takes what comes next for what it is not.
#[test]
fn each_with_each_length_wrong_asks_for_no_memory() {
    let limits = Limits::default();
    for request in one_of_each() {
        let bytes = request.encode();
        for at in 1..bytes.len().saturating_sub(7) {
            for wrong in [u64::MAX, 1 << 63, 1 << 32, limits.value as u64 + 1, limits.value as u64, 1000, 0] {
                let mut bytes = bytes.clone();
                bytes[at..at + 8].copy_from_slice(&wrong.to_le_bytes());
                let (mut input, mut parser) = (Input::default(), Parser::default());
                input.push(&bytes);
                while let Ok(Some(_)) = parser.next(&mut input, &limits) {}
                let kept: usize = parser.texts.iter().map(Vec::capacity).sum();
                assert!(
                    kept <= bytes.len() && parser.held() <= limits.request,
                    "{request:?} at {at}: {parser:?}"
                );
            }
        }
    }
}

#[test]
fn limits_are_kept_before_the_bytes_come() {
    let mut limits = Limits::default();
    (limits.key, limits.value, limits.keys_per_request, limits.request) = (10, 100, 3, 250);
    let refused = |request: Request, what: &str| {
        // Of the text that is too long, not one byte is there.
        let bytes = request.encode();
        let end = (0..=bytes.len()).find(|&end| requests([&bytes[..end]].into_iter(), &limits).1.is_err());
        let (_, Err(Refused(why))) = requests([&bytes[..end.unwrap()]].into_iter(), &limits) else {
            panic!()
        };
        assert!(why.contains(what), "{why}");
        bytes.len() - end.unwrap()
    };
    let text = |size: usize| vec![b'x'; size];
    assert_eq!(refused(Request::Get(text(11)), "a text of 11 bytes, where 10 is the most"), 11);
    assert_eq!(refused(Request::Set { key: text(10), value: text(101) }, "a text of 101 bytes"), 101);
    assert!(refused(Request::Check(vec![text(1); 4]), "4 keys, where 3 are the most") > 0);
    assert!(refused(Request::MultiSet(vec![(text(1), text(90)); 3]), "a request of more than 250 bytes") > 0);
    let whole = Request::MultiSet(vec![(text(10), text(40)); 1]);
    assert_eq!(requests([whole.encode().as_slice()].into_iter(), &limits), (vec![whole], Ok(true)));
}

#[test]
fn what_is_no_request_is_refused() {
    let limits = Limits::default();
    for code in Op::ALL.len() as u8..=u8::MAX {
        let (found, end) = requests([&[code][..]].into_iter(), &limits);
        assert!(found.is_empty() && end.is_err_and(|e| e.0.contains(&format!("no request {code}"))));
    }
    assert_eq!(requests([&VALIDATE[..]].into_iter(), &limits).0.len(), 1);
}

#[test]
fn memory_of_a_large_request_is_given_back() {
    let limits = Limits::default();
    let (mut input, mut parser) = (Input::default(), Parser::default());
    input.push(&Request::Set { key: b"k".to_vec(), value: vec![1; 1 << 20] }.encode());
    assert!(matches!(parser.next(&mut input, &limits), Ok(Some(_))));
    assert_eq!(parser.held(), 0);
    input.shrink();
    assert!(input.bytes.capacity() <= 64 << 10);
}
