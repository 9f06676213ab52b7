//! Who is the odd one out: the same rule wherever ranks compare what they say.

/// The odd one of a list and one of the others; `None` if all are equal.
///
/// With a majority, it is the first outside of it; without one, the first that differs from the lowest rank. Every
/// rank that has the whole list comes to the same verdict.
///
/// ```
/// use comm_core::team::odd_one_out;
///
/// assert_eq!(odd_one_out(&["f32", "f32", "f64"]), Some((2, 0)));
/// assert_eq!(odd_one_out(&["f64", "f32", "f32"]), Some((0, 1)));
/// assert_eq!(odd_one_out(&["f32", "f64"]), Some((1, 0)));
/// assert_eq!(odd_one_out(&[7, 7, 7]), None);
/// ```
pub fn odd_one_out<T: PartialEq>(said: &[T]) -> Option<(usize, usize)> {
    let first = said.first()?;
    let differs = said.iter().position(|x| x != first)?;
    let is_majority = |x: &T| 2 * said.iter().filter(|y| *y == x).count() > said.len();
    match said.iter().position(is_majority) {
        Some(common) => {
            let odd = said.iter().position(|x| *x != said[common])?;
            Some((odd, common))
        }
        None => Some((differs, 0)),
    }
}
