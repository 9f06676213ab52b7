//! Requests out of bytes that come in pieces from anybody.
//!
//! Whatever comes, each step costs what it has read, and nothing is allocated for what has only been announced: a length is
//! compared with its limit before a byte of it is there.

#[cfg(test)]
pub(crate) mod tests;

use super::limits::Limits;
use super::request::{Op, Request, cost};

/// Why a connection is not served any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused(pub String);

impl Refused {
    pub fn new(why: impl Into<String>) -> Refused {
        Refused(why.into())
    }
}

/// Bytes that have come and have not been read.
#[derive(Debug, Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    start: usize,
}

impl Input {
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub fn peek(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Takes so many bytes, if they are there.
    pub fn take(&mut self, size: usize) -> Option<&[u8]> {
        let end = self.start.checked_add(size).filter(|&end| end <= self.bytes.len())?;
        let start = std::mem::replace(&mut self.start, end);
        Some(&self.bytes[start..end])
    }

    /// Gives back memory that one large request has needed.
    pub fn shrink(&mut self) {
        const USUAL: usize = 64 << 10;
        if self.bytes.capacity() > USUAL && self.len() < USUAL {
            self.bytes = self.peek().to_vec();
            self.start = 0;
        }
    }

    fn word(&mut self) -> Option<u32> {
        self.take(4).and_then(|bytes| bytes.first_chunk()).map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn number(&mut self) -> Option<u64> {
        self.take(8).and_then(|bytes| bytes.first_chunk()).map(|bytes| u64::from_le_bytes(*bytes))
    }
}

/// The request that is under way.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    op: Option<Op>,
    number: Option<u64>,
    /// Keys and values that are there.
    texts: Vec<Vec<u8>>,
    /// The length of the next of them, once it is known.
    length: Option<usize>,
    /// Bytes of this request up to here.
    size: usize,
}

/// What comes next in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Word,
    Number,
    Count,
    Key,
    Value,
}

impl Parser {
    /// Whether a request has begun and is not whole.
    pub fn is_inside(&self) -> bool {
        self.op.is_some()
    }

    /// Bytes that it holds of the request. What has only been announced is not held.
    pub fn held(&self) -> usize {
        self.size - self.length.unwrap_or(0)
    }

    /// The next request, if all of it is there.
    pub fn next(&mut self, input: &mut Input, limits: &Limits) -> Result<Option<Request>, Refused> {
        let op = match self.op {
            Some(op) => op,
            None => {
                let Some(&[code]) = input.take(1) else { return Ok(None) };
                let known = Op::ALL.get(usize::from(code));
                let op = *known.ok_or_else(|| Refused::new(format!("there is no request {code}")))?;
                self.op = Some(op);
                op
            }
        };
        while let Some(part) = self.wanted(op) {
            let there = match part {
                Part::Word => input.word().map(|word| self.number = Some(u64::from(word))),
                Part::Number => input.number().map(|number| self.number = Some(number)),
                Part::Count => match input.number() {
                    Some(count) if count > limits.keys_per_request as u64 => {
                        let most = limits.keys_per_request;
                        return Err(Refused::new(format!("{count} keys, where {most} are the most")));
                    }
                    count => count.map(|count| self.number = Some(count)),
                },
                Part::Key => self.text(input, limits.key, limits)?,
                Part::Value => self.text(input, limits.value, limits)?,
            };
            if there.is_none() {
                return Ok(None);
            }
        }
        let whole = std::mem::take(self);
        Ok(Some(request(op, whole.number.unwrap_or(0), whole.texts)))
    }

    /// What the request still needs.
    fn wanted(&self, op: Op) -> Option<Part> {
        const PAIR: [Part; 2] = [Part::Key, Part::Value];
        let texts = self.texts.len();
        let then_number = |part| if self.number.is_none() { Some(part) } else { None };
        match op {
            Op::Validate | Op::Ping => then_number(Part::Word),
            Op::NumKeys | Op::CancelWait | Op::ListKeys => None,
            Op::Get | Op::Delete | Op::QueuePop | Op::QueueLen => PAIR[..1].get(texts).copied(),
            Op::Set | Op::Append | Op::QueuePush => PAIR.get(texts).copied(),
            Op::CompareSet => [Part::Key, Part::Value, Part::Value].get(texts).copied(),
            Op::Add | Op::Barrier => PAIR[..1].get(texts).copied().or_else(|| then_number(Part::Number)),
            Op::Check | Op::Wait | Op::MultiGet => match self.number {
                None => Some(Part::Count),
                Some(count) => ((texts as u64) < count).then_some(Part::Key),
            },
            Op::MultiSet => match self.number {
                None => Some(Part::Count),
                Some(count) => ((texts as u64) < count.saturating_mul(2)).then(|| PAIR[texts % 2]),
            },
        }
    }

    /// Takes a key or a value, if all of it is there.
    fn text(&mut self, input: &mut Input, limit: usize, limits: &Limits) -> Result<Option<()>, Refused> {
        if self.length.is_none() {
            let Some(length) = input.number() else { return Ok(None) };
            let small = usize::try_from(length).ok().filter(|&length| length <= limit);
            let length = small.ok_or_else(|| {
                Refused::new(format!("a text of {length} bytes, where {limit} is the most"))
            })?;
            // What it costs to keep it counts, too: empty texts are not for nothing.
            self.size = self.size.saturating_add(cost(length));
            if self.size > limits.request {
                return Err(Refused::new(format!("a request of more than {} bytes", limits.request)));
            }
            self.length = Some(length);
        }
        let Some(text) = self.length.and_then(|length| input.take(length)) else { return Ok(None) };
        self.texts.push(text.to_vec());
        self.length = None;
        Ok(Some(()))
    }
}

/// The request that these parts are. There are as many as it has asked for.
fn request(op: Op, number: u64, texts: Vec<Vec<u8>>) -> Request {
    let mut texts = texts.into_iter();
    let mut next = || texts.next().unwrap_or_default();
    match op {
        Op::Validate => Request::Validate(number as u32),
        Op::Ping => Request::Ping(number as u32),
        Op::Set => Request::Set { key: next(), value: next() },
        Op::CompareSet => Request::CompareSet { key: next(), expected: next(), desired: next() },
        Op::Get => Request::Get(next()),
        Op::Add => Request::Add { key: next(), amount: number.cast_signed() },
        Op::NumKeys => Request::NumKeys,
        Op::Delete => Request::Delete(next()),
        Op::Append => Request::Append { key: next(), value: next() },
        Op::CancelWait => Request::CancelWait,
        Op::QueuePush => Request::QueuePush { key: next(), value: next() },
        Op::QueuePop => Request::QueuePop(next()),
        Op::QueueLen => Request::QueueLen(next()),
        Op::ListKeys => Request::ListKeys,
        Op::Barrier => Request::Barrier { key: next(), size: number.cast_signed() },
        Op::Check => Request::Check(texts.collect()),
        Op::Wait => Request::Wait(texts.collect()),
        Op::MultiGet => Request::MultiGet(texts.collect()),
        Op::MultiSet => Request::MultiSet((0..number).map(|_| (next(), next())).collect()),
    }
}
