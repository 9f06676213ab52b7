//! nccl.h as it is, but that functions are looked up in a library that was opened, each an `Option`.
//!
//! Enums are integers with names: a library may give numbers that the header did not know.
#![allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]

/// The functions of the header as a structure of pointers, in the place of a block of functions that are linked.
macro_rules! functions {
    ($(pub fn $name:ident($($arg:ident: $kind:ty),* $(,)?) $(-> $out:ty)?;)*) => {
        /// Every function of the header, as far as a library has it.
        #[derive(Debug, Clone, Copy)]
        pub struct Functions {
            $(pub $name: Option<unsafe extern "C" fn($($arg: $kind),*) $(-> $out)?>,)*
        }

        impl Functions {
            /// Their names, in the order of the header.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// Whether the library has the function of this name.
            pub fn has(&self, name: &str) -> bool {
                $(if name == stringify!($name) { return self.$name.is_some(); })*
                false
            }

            /// Looks up those that `wanted` asks for.
            ///
            /// # Safety
            /// What the library has under these names are functions as the header declares them. Nothing may be called
            /// once the library has been closed.
            pub(crate) unsafe fn of(
                library: &libloading::os::unix::Library,
                wanted: impl Fn(&str) -> bool,
            ) -> Functions {
                Functions {
                    $($name: if wanted(stringify!($name)) {
                        // SAFETY: the caller says that it is a function of this type.
                        unsafe { library.get(concat!(stringify!($name), "\0")) }.ok().map(|found| *found)
                    } else {
                        None
                    },)*
                }
            }
        }
    };
}

mod bindings;

pub use bindings::*;
