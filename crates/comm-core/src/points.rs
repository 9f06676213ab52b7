//! Named points at which a test can make this process fail.
//!
//! A library marks a place with [`point!`](crate::point); with the feature `points` a test installs a hook
//! that is called there with the name, and may kill the process, stop it, panic or hold it. Without the
//! feature nothing is compiled in. Every crate lists its points in a constant `POINTS`, so that a fault
//! matrix can run over all of them; a name that is not listed does not compile.

/// Marks a fault point. The name must stand in the constant `POINTS` at the root of the crate that marks it.
///
/// ```standalone_crate
/// /// The fault points of this crate.
/// pub const POINTS: &[&str] = &["pour.begun"];
///
/// fn pour() {
///     comm_core::point!("pour.begun");
/// }
///
/// fn main() {
///     pour();
/// }
/// ```
#[allow(clippy::crate_in_macro_def, reason = "it is the marking crate's list that counts")]
#[macro_export]
macro_rules! point {
    ($name:literal) => {{ $crate::__point!($name, crate::POINTS) }};
}

#[cfg(feature = "points")]
#[doc(hidden)]
#[macro_export]
macro_rules! __point {
    ($name:literal, $list:path) => {{
        const _: () = assert!($crate::points::listed($list, $name), "the point is not listed in POINTS");
        $crate::points::hit($name)
    }};
}

#[cfg(not(feature = "points"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __point {
    ($name:literal, $list:path) => {{}};
}

#[cfg(feature = "points")]
mod hook {
    use std::sync::OnceLock;

    type Hook = Box<dyn Fn(&'static str) + Send + Sync>;
    static HOOK: OnceLock<Hook> = OnceLock::new();

    /// Installs the hook of this process, which is called with the name of each point that is passed, on the thread
    /// that passes it; `false` if there is one already.
    pub fn install(hook: impl Fn(&'static str) + Send + Sync + 'static) -> bool {
        HOOK.set(Box::new(hook)).is_ok()
    }

    #[doc(hidden)]
    pub fn hit(name: &'static str) {
        if let Some(hook) = HOOK.get() {
            hook(name);
        }
    }

    #[doc(hidden)]
    pub const fn listed(list: &[&str], name: &str) -> bool {
        let mut i = 0;
        while i < list.len() {
            if same(list[i].as_bytes(), name.as_bytes()) {
                return true;
            }
            i += 1;
        }
        false
    }

    const fn same(a: &[u8], b: &[u8]) -> bool {
        if a.len() != b.len() {
            return false;
        }
        let mut i = 0;
        while i < a.len() {
            if a[i] != b[i] {
                return false;
            }
            i += 1;
        }
        true
    }
}

#[cfg(feature = "points")]
pub use hook::{hit, install, listed};
