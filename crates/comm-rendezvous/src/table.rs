//! Values under keys, and what can be done to them: the same in every kind.

use std::collections::HashMap;

/// What is under which key. It knows how many bytes it holds.
#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: HashMap<Box<[u8]>, Vec<u8>>,
    bytes: usize,
}

/// What was to be added to is not a number.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotANumber;

impl Table {
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.entries.get(key).map(Vec::as_slice)
    }

    pub fn has(&self, key: &[u8]) -> bool {
        self.entries.contains_key(key)
    }

    pub fn set(&mut self, key: &[u8], value: Vec<u8>) {
        self.bytes += value.len();
        match self.entries.get_mut(key) {
            Some(there) => self.bytes -= std::mem::replace(there, value).len(),
            None => {
                self.bytes += key.len();
                self.entries.insert(key.into(), value);
            }
        }
    }

    /// Adds to the end of a value, which is empty where nothing is.
    pub fn append(&mut self, key: &[u8], more: &[u8]) {
        match self.entries.get_mut(key) {
            Some(there) => {
                there.extend_from_slice(more);
                self.bytes += more.len();
            }
            None => self.set(key, more.to_vec()),
        }
    }

    /// What the number under a key comes to with so much more. It is not put there.
    pub fn sum(&self, key: &[u8], amount: i64) -> Result<i64, NotANumber> {
        let number = |value| std::str::from_utf8(value).ok()?.parse::<i64>().ok();
        match self.get(key) {
            None => Ok(amount),
            Some(value) => number(value).map(|n| n.wrapping_add(amount)).ok_or(NotANumber),
        }
    }

    /// Whether the expected value is there, so that another may take its place. An empty one is as good as none.
    pub fn is(&self, key: &[u8], expected: &[u8]) -> bool {
        self.get(key).map_or(expected.is_empty(), |there| there == expected)
    }

    pub fn delete(&mut self, key: &[u8]) -> bool {
        let gone = self.entries.remove(key);
        self.bytes -= gone.as_ref().map_or(0, |value| key.len() + value.len());
        gone.is_some()
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many bytes keys and values have.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.entries.keys().map(AsRef::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_keys_and_values() {
        let mut table = Table::default();
        table.set(b"key", b"value".to_vec());
        assert_eq!((table.len(), table.bytes()), (1, 8));
        table.set(b"key", b"v".to_vec());
        table.set(b"other", Vec::new());
        assert_eq!((table.len(), table.bytes()), (2, 9));
        assert!(table.delete(b"key") && !table.delete(b"key"));
        assert_eq!((table.len(), table.bytes()), (1, 5));
        assert!(table.delete(b"other"));
        table.append(b"key", b"va");
        table.append(b"key", b"lue");
        assert_eq!((table.get(b"key"), table.len(), table.bytes()), (Some(&b"value"[..]), 1, 8));
        assert!(table.delete(b"key"));
        assert_eq!((table.len(), table.bytes()), (0, 0));
    }

    #[test]
    fn numbers_are_decimal_text() {
        let mut table = Table::default();
        assert_eq!(table.sum(b"n", -3), Ok(-3));
        for (value, sum) in [("5", Ok(7)), ("-2", Ok(0)), ("9223372036854775807", Ok(i64::MIN + 1))] {
            table.set(b"n", value.into());
            assert_eq!(table.sum(b"n", 2), sum, "{value}");
        }
        for value in [&b""[..], b"x", b"1x", b" 1", b"1.0", b"9223372036854775808", b"\xff"] {
            table.set(b"n", value.to_vec());
            assert_eq!(table.sum(b"n", 2), Err(NotANumber), "{value:?}");
        }
    }

    #[test]
    fn nothing_is_as_good_as_an_empty_value() {
        let mut table = Table::default();
        assert!(table.is(b"k", b"") && !table.is(b"k", b"x"));
        table.set(b"k", b"x".to_vec());
        assert!(!table.is(b"k", b"") && table.is(b"k", b"x"));
        table.set(b"k", Vec::new());
        assert!(table.is(b"k", b""));
    }
}
