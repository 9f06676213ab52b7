//! What a server holds, and what each request does to it.

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::table::Table;
use crate::tcp::identity;
use crate::tcp::limits::Limits;
use crate::tcp::parser::Refused;
use crate::tcp::request::{Request, Writer};

/// A client, by the number of its connection.
pub(super) type Client = u64;

/// What the waits of clients come to.
const READY: u8 = 0;
const NOT_READY: u8 = 1;
const CANCELED: u8 = 1;

/// Room for so many values a queue may keep while it has less.
const FEW: usize = 64;

/// Answers, each for a client. A wait that ends is one of another client than the one that asks.
pub(super) type Answers = Vec<(Client, Vec<u8>)>;

/// Keys, values, queues, and who waits for what.
#[derive(Debug)]
pub(super) struct State {
    table: Table,
    queues: HashMap<Vec<u8>, VecDeque<Vec<u8>>>,
    /// Bytes and number of what is in the queues.
    queued: (usize, usize),
    waits: HashMap<Client, Wait>,
    /// Who waits for a key, in the order in which they came.
    waiting: HashMap<Vec<u8>, VecDeque<Client>>,
    /// Who stands at a barrier. Its key may be waited for, too, and be that of a queue.
    barriers: HashMap<Vec<u8>, VecDeque<Client>>,
    /// When each key was last asked for or changed, if keys have a lease.
    touched: HashMap<Vec<u8>, Instant>,
    identity: Vec<u8>,
}

/// What a client waits for.
#[derive(Debug)]
enum Wait {
    /// Keys that have not been there yet, and the bytes that it takes to wait for them.
    Keys(HashSet<Vec<u8>>, usize),
    /// Others at a barrier.
    Barrier(Vec<u8>),
}

impl State {
    pub fn new(identity: Vec<u8>) -> State {
        State {
            table: Table::default(),
            queues: HashMap::new(),
            queued: (0, 0),
            waits: HashMap::new(),
            waiting: HashMap::new(),
            barriers: HashMap::new(),
            touched: HashMap::new(),
            identity,
        }
    }

    /// Whether a client waits. It then may only cancel that.
    pub fn is_waiting(&self, client: Client) -> bool {
        self.waits.contains_key(&client)
    }

    /// Bytes that are kept for a client because it waits.
    pub fn held(&self, client: Client) -> usize {
        match self.waits.get(&client) {
            Some(Wait::Keys(_, bytes)) => *bytes,
            Some(Wait::Barrier(key)) => cost(key),
            None => 0,
        }
    }

    /// Forgets what a client waits for.
    pub fn forget(&mut self, client: Client) {
        match self.waits.remove(&client) {
            None => {}
            Some(Wait::Keys(keys, _)) => keys.iter().for_each(|key| leave(&mut self.waiting, key, client)),
            Some(Wait::Barrier(key)) => leave(&mut self.barriers, &key, client),
        }
    }

    /// Carries a request out.
    pub fn act(
        &mut self,
        client: Client,
        request: Request,
        limits: &Limits,
        answers: &mut Answers,
    ) -> Result<(), Refused> {
        let mut answer = |bytes: Writer| answers.push((client, bytes.bytes()));
        match request {
            Request::Validate(_) => return Err(Refused::new("it has said already who it is")),
            Request::Ping(nonce) => answer(Writer::new().word(nonce)),
            Request::Set { key, value } => self.set(&key, value, limits, answers)?,
            Request::MultiSet(pairs) => {
                pairs.into_iter().try_for_each(|(key, value)| self.set(&key, value, limits, answers))?;
            }
            Request::Append { key, value } => {
                let whole = self.table.get(&key).map_or(0, <[u8]>::len) + value.len();
                if whole > limits.value {
                    return Err(Refused::new(format!("a value of more than {} bytes", limits.value)));
                }
                self.allow(&key, whole, limits)?;
                // In its place: a copy of a long value for each byte that is added would keep all others waiting.
                self.table.append(&key, &value);
                self.changed(&key, limits, answers);
            }
            Request::Add { key, amount } => {
                let sum = self.table.sum(&key, amount);
                let sum = sum.map_err(|_| Refused::new("it adds to what is no number"))?;
                answer(Writer::new().number(sum));
                self.set(&key, sum.to_string().into_bytes(), limits, answers)?;
            }
            Request::CompareSet { key, expected, desired } => {
                if self.table.is(&key, &expected) {
                    answer(Writer::new().text(&desired));
                    self.set(&key, desired, limits, answers)?;
                } else {
                    self.touch(&key, limits);
                    answer(Writer::new().text(self.table.get(&key).unwrap_or(&expected)));
                }
            }
            Request::Get(key) => {
                self.touch(&key, limits);
                answer(Writer::new().text(self.value(&key)));
            }
            Request::MultiGet(keys) => answer(self.values(&keys, limits)?),
            Request::Check(keys) => {
                let all = keys.iter().all(|key| self.is_there(key));
                answer(Writer::new().byte(if all { READY } else { NOT_READY }));
            }
            Request::Wait(keys) => {
                let missing: HashSet<_> = keys.into_iter().filter(|key| !self.is_there(key)).collect();
                if missing.is_empty() {
                    answer(Writer::new().byte(READY));
                } else {
                    for key in &missing {
                        self.waiting.entry(key.clone()).or_default().push_back(client);
                    }
                    let bytes = missing.iter().map(|key| cost(key)).sum();
                    self.waits.insert(client, Wait::Keys(missing, bytes));
                }
            }
            Request::CancelWait => {
                self.forget(client);
                answer(Writer::new().byte(CANCELED));
            }
            Request::NumKeys => answer(Writer::new().number(self.table.len() as i64)),
            Request::Delete(key) => {
                answer(Writer::new().number(i64::from(self.table.delete(&key))));
                if !self.queues.contains_key(&key) {
                    self.touched.remove(&key);
                }
            }
            Request::QueuePush { key, value } => self.push(key, value, limits, answers)?,
            Request::QueuePop(key) => {
                let length = self.queue_length(&key);
                let reply = Writer::new().number(length);
                answer(match self.pop(&key) {
                    Some(value) => reply.text(&value),
                    None => reply,
                });
            }
            Request::QueueLen(key) => answer(Writer::new().number(self.queue_length(&key))),
            Request::ListKeys => answer(self.list(limits)?),
            Request::Barrier { key, size } => self.barrier(client, key, size, limits, answers)?,
        }
        Ok(())
    }

    fn value(&self, key: &[u8]) -> &[u8] {
        if key == identity::KEY { &self.identity } else { self.table.get(key).unwrap_or_default() }
    }

    fn is_there(&self, key: &[u8]) -> bool {
        key == identity::KEY || self.table.has(key) || self.queues.contains_key(key)
    }

    /// Whether so many bytes more, and as many things, can be kept.
    fn room(&self, bytes: usize, things: usize, limits: &Limits) -> Result<(), Refused> {
        if self.table.bytes() + self.queued.0 + bytes > limits.store {
            return Err(Refused::new(format!("more than {} bytes of keys and values", limits.store)));
        }
        if self.table.len() + self.queued.1 + things > limits.entries {
            return Err(Refused::new(format!("more than {} keys and queued values", limits.entries)));
        }
        Ok(())
    }

    fn set(
        &mut self,
        key: &[u8],
        value: Vec<u8>,
        limits: &Limits,
        answers: &mut Answers,
    ) -> Result<(), Refused> {
        self.allow(key, value.len(), limits)?;
        self.table.set(key, value);
        self.changed(key, limits, answers);
        Ok(())
    }

    /// Whether a value of so many bytes may be under a key.
    fn allow(&self, key: &[u8], size: usize, limits: &Limits) -> Result<(), Refused> {
        if key == identity::KEY {
            return Err(Refused::new("that key is the server's own"));
        }
        let there = self.table.get(key).map(<[u8]>::len);
        let more = there.map_or(key.len() + size, |before| size.saturating_sub(before));
        self.room(more, usize::from(there.is_none()), limits)
    }

    /// What comes of a value that has been put under a key: its lease begins anew, and waits for it end.
    fn changed(&mut self, key: &[u8], limits: &Limits, answers: &mut Answers) {
        self.touch(key, limits);
        for client in self.waiting.remove(key).unwrap_or_default() {
            self.comes(client, key, answers);
        }
    }

    /// A key that a client waits for has come; whether that was the last one.
    fn comes(&mut self, client: Client, key: &[u8], answers: &mut Answers) -> bool {
        let Some(Wait::Keys(missing, bytes)) = self.waits.get_mut(&client) else { return false };
        if missing.remove(key) {
            *bytes -= cost(key);
        }
        let over = missing.is_empty();
        if over {
            self.waits.remove(&client);
            answers.push((client, vec![READY]));
        }
        over
    }

    fn values(&mut self, keys: &[Vec<u8>], limits: &Limits) -> Result<Writer, Refused> {
        keys.iter().for_each(|key| self.touch(key, limits));
        let size = keys.iter().map(|key| 8 + self.value(key).len()).sum();
        answerable(size, limits)?;
        Ok(keys.iter().fold(Writer::new(), |to, key| to.text(self.value(key))))
    }

    fn list(&self, limits: &Limits) -> Result<Writer, Refused> {
        answerable(self.table.keys().map(|key| 8 + key.len()).sum(), limits)?;
        let counted = Writer::new().number(self.table.len() as i64);
        Ok(self.table.keys().fold(counted, Writer::text))
    }

    fn push(
        &mut self,
        key: Vec<u8>,
        value: Vec<u8>,
        limits: &Limits,
        answers: &mut Answers,
    ) -> Result<(), Refused> {
        self.room(key.len() + value.len(), 1, limits)?;
        self.queued.0 += key.len() + value.len();
        self.queued.1 += 1;
        self.queues.entry(key.clone()).or_default().push_back(value);
        self.touch(&key, limits);
        // A value is for one: the first who waits for nothing else.
        while let Some(client) = self.waiting.get_mut(&key).and_then(VecDeque::pop_front) {
            if self.comes(client, &key, answers) {
                break;
            }
        }
        if self.waiting.get(&key).is_some_and(VecDeque::is_empty) {
            self.waiting.remove(&key);
        }
        Ok(())
    }

    fn pop(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let queue = self.queues.get_mut(key)?;
        let value = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(key);
            if !self.table.has(key) {
                self.touched.remove(key);
            }
        } else if queue.capacity() > FEW.max(4 * queue.len()) {
            // Of a queue that has been long, or of each of many, not the memory of its longest time is kept.
            queue.shrink_to(2 * queue.len());
        }
        self.queued.0 -= key.len() + value.len();
        self.queued.1 -= 1;
        Some(value)
    }

    fn queue_length(&self, key: &[u8]) -> i64 {
        self.queues.get(key).map_or(0, VecDeque::len) as i64
    }

    /// Counts a client that has come to a barrier, and lets all go if it is the last one. A count that is there already, of
    /// one who has given up for example, counts.
    fn barrier(
        &mut self,
        client: Client,
        key: Vec<u8>,
        size: i64,
        limits: &Limits,
        answers: &mut Answers,
    ) -> Result<(), Refused> {
        let count = self.table.sum(&key, 1).map_err(|_| Refused::new("its barrier is no number"))?;
        self.set(&key, count.to_string().into_bytes(), limits, answers)?;
        if count < size {
            self.barriers.entry(key.clone()).or_default().push_back(client);
            self.waits.insert(client, Wait::Barrier(key));
            return Ok(());
        }
        answers.push((client, vec![READY]));
        for other in self.barriers.remove(&key).unwrap_or_default() {
            self.waits.remove(&other);
            answers.push((other, vec![READY]));
        }
        Ok(())
    }

    /// Of a key that is not there nothing is kept, however many are asked for.
    fn touch(&mut self, key: &[u8], limits: &Limits) {
        if limits.lease.is_some() && (self.table.has(key) || self.queues.contains_key(key)) {
            self.touched.insert(key.to_vec(), Instant::now());
        }
    }

    /// Forgets what nobody has asked for or changed for so long.
    pub fn sweep(&mut self, lease: Duration) {
        let State { table, queues, queued, touched, .. } = self;
        touched.retain(|key, when| {
            let stays = when.elapsed() < lease && (table.has(key) || queues.contains_key(key));
            if !stays {
                table.delete(key);
                for value in queues.remove(key).unwrap_or_default() {
                    queued.0 -= key.len() + value.len();
                    queued.1 -= 1;
                }
            }
            stays
        });
    }
}

/// What it takes to keep a key that somebody waits for: once with him, and once with the line.
fn cost(key: &[u8]) -> usize {
    2 * (key.len() + size_of::<Vec<u8>>())
}

/// Takes a client out of a line.
fn leave(lines: &mut HashMap<Vec<u8>, VecDeque<Client>>, key: &[u8], client: Client) {
    if let Some(line) = lines.get_mut(key) {
        line.retain(|&other| other != client);
        if line.is_empty() {
            lines.remove(key);
        }
    }
}

fn answerable(size: usize, limits: &Limits) -> Result<(), Refused> {
    if size > limits.request {
        return Err(Refused::new(format!(
            "an answer of {size} bytes, where {} are the most",
            limits.request
        )));
    }
    Ok(())
}
