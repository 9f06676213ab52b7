//! What will be so sooner or later.

use std::time::{Duration, Instant};

/// Looks until it is so, for ten seconds at most. For what nothing tells of.
///
/// ```
/// let mut looks = 0;
/// comm_testkit::eventually("the third look is made", || {
///     looks += 1;
///     looks == 3
/// })?;
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// What never was so.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Result<(), String> {
    let until = Instant::now() + Duration::from_secs(10);
    while !holds() {
        if Instant::now() > until {
            return Err(format!("it never was so that {what}"));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}
