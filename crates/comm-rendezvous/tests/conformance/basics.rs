//! Values, numbers, exchanges.

use comm_rendezvous::{Error, MAX_KEY, MAX_KEYS, MAX_VALUE};

use crate::{Place, soon};

pub fn values(place: &Place) {
    let (one, two) = (place.open(), place.open());
    assert!(!one.check(&["k"], soon()).unwrap());
    one.set("k", b"v", soon()).unwrap();
    assert_eq!(two.get("k", soon()).unwrap(), b"v");
    two.set("k", b"other", soon()).unwrap();
    assert_eq!(one.get("k", soon()).unwrap(), b"other");
    one.set("l", b"", soon()).unwrap();
    assert!(two.check(&["k", "l"], soon()).unwrap());
    assert!(!two.check(&["k", "l", "m"], soon()).unwrap());
    assert!(two.check(&[], soon()).unwrap());
    two.wait(&[], soon()).unwrap();
    assert_eq!(two.get("l", soon()).unwrap(), b"");
}

pub fn every_value_is_kept(place: &Place) {
    let (one, two) = (place.open(), place.open());
    let bytes: Vec<u8> = (0..=255).collect();
    for key in ["", "/", "a/b", "a key", "\u{0}", "käse", "\n", "init/", "comm/server"] {
        one.set(key, &bytes, soon()).unwrap();
        assert_eq!(two.get(key, soon()).unwrap(), bytes, "{key:?}");
        assert!(two.delete(key, soon()).unwrap());
    }
}

pub fn numbers(place: &Place) {
    let (one, two) = (place.open(), place.open());
    assert_eq!(one.add("n", 5, soon()).unwrap(), 5);
    assert_eq!(two.add("n", -7, soon()).unwrap(), -2);
    assert_eq!(one.add("n", 0, soon()).unwrap(), -2);
    assert_eq!(one.get("n", soon()).unwrap(), b"-2");
    one.set("n", b"9223372036854775807", soon()).unwrap();
    assert_eq!(two.add("n", 1, soon()).unwrap(), i64::MIN);
    // What is no number stays what it is.
    two.set("n", b"seven", soon()).unwrap();
    let error = one.add("n", 1, soon()).unwrap_err();
    assert!(matches!(error, Error::NotANumber { .. } | Error::Lost { .. }), "{error}");
    assert!(error.to_string().contains("number"), "{error}");
    assert_eq!(one.get("n", soon()).unwrap(), b"seven");
}

pub fn exchanges(place: &Place) {
    let (one, two) = (place.open(), place.open());
    // Nothing is there, and something was expected.
    assert_eq!(one.compare_set("k", b"x", b"y", soon()).unwrap(), b"x");
    assert!(!one.check(&["k"], soon()).unwrap());
    assert_eq!(one.compare_set("k", b"", b"1", soon()).unwrap(), b"1");
    // Another one is there, which comes back and stays.
    assert_eq!(two.compare_set("k", b"", b"2", soon()).unwrap(), b"1");
    assert_eq!(two.compare_set("k", b"1", b"2", soon()).unwrap(), b"2");
    assert_eq!(one.get("k", soon()).unwrap(), b"2");
    assert_eq!(two.compare_set("k", b"2", b"", soon()).unwrap(), b"");
    assert_eq!(two.compare_set("k", b"", b"3", soon()).unwrap(), b"3");
}

pub fn deletes(place: &Place) {
    let (one, two) = (place.open(), place.open());
    assert!(!one.delete("k", soon()).unwrap());
    one.set("k", b"v", soon()).unwrap();
    assert!(two.delete("k", soon()).unwrap());
    assert!(!one.check(&["k"], soon()).unwrap());
    assert!(!one.delete("k", soon()).unwrap());
    assert_eq!(one.add("k", 1, soon()).unwrap(), 1);
}

pub fn sizes(place: &Place) {
    let (one, two) = (place.open(), place.open());
    // The longest that every kind takes; a prefix takes its part of the key.
    let key = "k".repeat(MAX_KEY - 20);
    let value = vec![7; MAX_VALUE];
    one.set(&key, &value, soon()).unwrap();
    assert_eq!(two.get(&key, soon()).unwrap(), value);
    let too_large = |error: Error, what: &str| {
        assert!(matches!(&error, Error::TooLarge { what: w, .. } if w.contains(what)), "{error}");
    };
    let long = "k".repeat(MAX_KEY + 1);
    too_large(one.set(&long, b"", soon()).unwrap_err(), "key");
    too_large(one.get(&long, soon()).unwrap_err(), "key");
    too_large(one.wait(&["k", &long], soon()).unwrap_err(), "key");
    too_large(one.check(&[&long], soon()).unwrap_err(), "key");
    too_large(one.add(&long, 1, soon()).unwrap_err(), "key");
    too_large(one.delete(&long, soon()).unwrap_err(), "key");
    let value = vec![0; MAX_VALUE + 1];
    too_large(one.set("k", &value, soon()).unwrap_err(), "value");
    too_large(one.compare_set("k", b"", &value, soon()).unwrap_err(), "value");
    too_large(one.compare_set("k", &value, b"", soon()).unwrap_err(), "value");
    too_large(one.wait(&vec!["k"; MAX_KEYS + 1], soon()).unwrap_err(), "number of keys");
    assert!(!one.check(&["k"], soon()).unwrap());
}
