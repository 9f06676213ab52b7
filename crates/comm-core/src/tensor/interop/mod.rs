//! Tensors of other libraries, and ours for them, without copying the elements.
//!
//! | with | ours to theirs | theirs to ours | feature |
//! |---|---|---|---|
//! | [`dlpack`]: any library that speaks it | no copy | no copy | |

pub mod dlpack;
