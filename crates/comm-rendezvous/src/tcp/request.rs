//! What a client asks a server, and how that is written.
//!
//! Numbers are little-endian. A request is an op code and what belongs to it; text is its length, 64 bits, and its bytes.

/// The first request of a connection, which says a number that is always the same. It goes in one segment, as torch's servers
/// want it.
pub(crate) const VALIDATE: [u8; 5] = [Op::Validate as u8, 0xce, 0xf7, 0x85, 0x3c];

/// Op codes, as torch numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Op {
    Validate,
    Set,
    CompareSet,
    Get,
    Add,
    Check,
    Wait,
    NumKeys,
    Delete,
    Append,
    MultiGet,
    MultiSet,
    CancelWait,
    Ping,
    QueuePush,
    QueuePop,
    QueueLen,
    ListKeys,
    Barrier,
}

impl Op {
    /// All of them, each at its code.
    pub const ALL: [Op; 19] = [
        Op::Validate,
        Op::Set,
        Op::CompareSet,
        Op::Get,
        Op::Add,
        Op::Check,
        Op::Wait,
        Op::NumKeys,
        Op::Delete,
        Op::Append,
        Op::MultiGet,
        Op::MultiSet,
        Op::CancelWait,
        Op::Ping,
        Op::QueuePush,
        Op::QueuePop,
        Op::QueueLen,
        Op::ListKeys,
        Op::Barrier,
    ];
}

/// A request, with the bytes that belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    Validate(u32),
    Ping(u32),
    Set { key: Vec<u8>, value: Vec<u8> },
    CompareSet { key: Vec<u8>, expected: Vec<u8>, desired: Vec<u8> },
    Get(Vec<u8>),
    Add { key: Vec<u8>, amount: i64 },
    Check(Vec<Vec<u8>>),
    Wait(Vec<Vec<u8>>),
    CancelWait,
    NumKeys,
    Delete(Vec<u8>),
    Append { key: Vec<u8>, value: Vec<u8> },
    MultiGet(Vec<Vec<u8>>),
    MultiSet(Vec<(Vec<u8>, Vec<u8>)>),
    QueuePush { key: Vec<u8>, value: Vec<u8> },
    QueuePop(Vec<u8>),
    QueueLen(Vec<u8>),
    ListKeys,
    Barrier { key: Vec<u8>, size: i64 },
}

impl Request {
    /// Whether a client that waits may ask for it.
    pub fn ends_wait(&self) -> bool {
        matches!(self, Request::CancelWait)
    }
}

/// What it costs a server to keep a text of so many bytes.
pub(crate) fn cost(length: usize) -> usize {
    length.saturating_add(size_of::<Vec<u8>>())
}

/// Requests as bytes.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    cost: usize,
}

impl Writer {
    pub fn new() -> Writer {
        Writer::default()
    }

    pub fn op(mut self, op: Op) -> Writer {
        self.bytes.push(op as u8);
        self
    }

    pub fn text(mut self, text: &[u8]) -> Writer {
        self.bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
        self.bytes.extend_from_slice(text);
        self.cost += cost(text.len());
        self
    }

    /// How many come, and then each.
    pub fn texts<'a>(self, texts: impl ExactSizeIterator<Item = &'a [u8]>) -> Writer {
        let counted = self.number(texts.len() as i64);
        texts.fold(counted, Writer::text)
    }

    pub fn number(mut self, number: i64) -> Writer {
        self.bytes.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub fn word(mut self, word: u32) -> Writer {
        self.bytes.extend_from_slice(&word.to_le_bytes());
        self
    }

    pub fn byte(mut self, byte: u8) -> Writer {
        self.bytes.push(byte);
        self
    }

    /// What all of its texts cost a server, which is what that one limits.
    pub fn cost(&self) -> usize {
        self.cost
    }

    pub fn bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
impl Request {
    /// As a client writes it.
    pub fn encode(&self) -> Vec<u8> {
        use Request as R;
        let op = |op| Writer::new().op(op);
        let all = |keys: &[Vec<u8>], code| op(code).texts(keys.iter().map(Vec::as_slice));
        match self {
            R::Validate(word) => op(Op::Validate).word(*word),
            R::Ping(word) => op(Op::Ping).word(*word),
            R::Set { key, value } => op(Op::Set).text(key).text(value),
            R::CompareSet { key, expected, desired } => {
                op(Op::CompareSet).text(key).text(expected).text(desired)
            }
            R::Get(key) => op(Op::Get).text(key),
            R::Add { key, amount } => op(Op::Add).text(key).number(*amount),
            R::Check(keys) => all(keys, Op::Check),
            R::Wait(keys) => all(keys, Op::Wait),
            R::CancelWait => op(Op::CancelWait),
            R::NumKeys => op(Op::NumKeys),
            R::Delete(key) => op(Op::Delete).text(key),
            R::Append { key, value } => op(Op::Append).text(key).text(value),
            R::MultiGet(keys) => all(keys, Op::MultiGet),
            R::MultiSet(pairs) => {
                pairs.iter().fold(op(Op::MultiSet).number(pairs.len() as i64), |to, (key, value)| {
                    to.text(key).text(value)
                })
            }
            R::QueuePush { key, value } => op(Op::QueuePush).text(key).text(value),
            R::QueuePop(key) => op(Op::QueuePop).text(key),
            R::QueueLen(key) => op(Op::QueueLen).text(key),
            R::ListKeys => op(Op::ListKeys),
            R::Barrier { key, size } => op(Op::Barrier).text(key).number(*size),
        }
        .bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_torch() {
        assert!((0u8..).zip(Op::ALL).all(|(code, op)| op as u8 == code));
        assert_eq!(Request::Validate(0x3C85_F7CE).encode(), VALIDATE);
        let bytes = Request::Wait(vec![b"/q".to_vec()]).encode();
        assert_eq!(bytes, b"\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/q");
        let bytes = Request::Barrier { key: b"/bar".to_vec(), size: 2 }.encode();
        assert_eq!(bytes, b"\x12\x04\0\0\0\0\0\0\0/bar\x02\0\0\0\0\0\0\0");
    }
}
