//! The rule for tiles that are loaded.

use comm_core::{Error, Result};

/// What a row or a column of a loaded tile must be a multiple of, in bytes.
const LOAD_BYTES: u128 = 32;

/// Checks that a tile can be loaded: the bytes of its rows (the last dimension) or of its columns (the last but one; a
/// single element if there is none) are a multiple of 32, as PyPTO's hardware wants it. A tile of no elements can be.
///
/// # Errors
/// [`Error::InvalidArgument`] if neither is, and for a shape without dimensions.
pub(super) fn check_alignment(op: &'static str, shape: &[usize], element_size: usize) -> Result<()> {
    if shape.contains(&0) {
        return Ok(());
    }
    let bytes = |extent: usize| extent as u128 * element_size as u128;
    let (row, column) = match *shape {
        [] => {
            let why = format!(
                "a shape without dimensions is one element of {element_size} bytes, and a tile is loaded in rows or \
                 columns of a multiple of {LOAD_BYTES} bytes; read the element by itself"
            );
            return Err(Error::invalid(op, why));
        }
        [row] => (bytes(row), bytes(1)),
        [.., column, row] => (bytes(row), bytes(column)),
    };
    if row.is_multiple_of(LOAD_BYTES) || column.is_multiple_of(LOAD_BYTES) {
        return Ok(());
    }
    let why = format!(
        "a row of shape {shape:?} has {row} bytes and a column {column}, and one of them must be a multiple of \
         {LOAD_BYTES}; read or write the elements one by one, or widen the window until one is"
    );
    Err(Error::invalid(op, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(outcome: Result<()>) -> String {
        outcome.expect_err("it is too narrow").to_string()
    }

    #[track_caller]
    fn assert_says(text: &str, parts: &[&str]) {
        for part in parts {
            assert!(text.contains(part), "no {part:?} in {text:?}");
        }
    }

    #[test]
    fn a_loaded_tile_has_rows_or_columns_of_32_bytes() {
        let check = |shape: &[usize]| check_alignment("test", shape, 4);
        for fine in [&[8, 1][..], &[1, 8], &[4, 8], &[8], &[3, 5, 16], &[9, 8, 3], &[0], &[3, 0], &[0, 3, 3]]
        {
            assert!(check(fine).is_ok(), "{fine:?}");
        }
        assert!(check_alignment("test", &[32], 1).is_ok() && check_alignment("test", &[1, 2], 16).is_ok());
        assert!(check_alignment("test", &[8, 1], 2).is_err() && check_alignment("test", &[8], 2).is_err());
        let fixes = ["32", "one by one", "widen the window"];
        let why = refused(check(&[2, 1]));
        assert_says(&why, &[&["[2, 1]", "row", "4 bytes", "column 8"], &fixes[..]].concat());
        assert_says(&refused(check(&[3])), &[&["12 bytes", "column 4"], &fixes[..]].concat());
        assert_says(&refused(check(&[8, 3, 5])), &["20 bytes", "column 12"]);
        assert_says(&refused(check(&[])), &["32", "without dimensions", "read"]);
        assert!(check(&[usize::MAX, usize::MAX]).is_err());
    }
}
