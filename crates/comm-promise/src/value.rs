//! What can go from one process to another: tensors by their place, everything else by its bytes.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use comm_core::device::Stream;
use comm_core::shm::{Arena, Segment};
use comm_core::tensor::{DType, Layout, Place, Tensor, TensorBuf};
use comm_core::{Error, Result, wire};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::lot::Tenancy;

/// A value that a promise of kind [`Host`](comm_core::Kind::Host) can carry.
///
/// There are tensors, `()`, whatever serde writes as a [`Wire`], and vectors and pairs of such values. (Of elements that take
/// no bytes, as `()`, a value has at most 2^20: a number alone would say how many are to be made.) A type of one's own that
/// has tensors in it says how it is taken apart and put together again:
///
/// ```
/// use comm_core::{Result, tensor::Tensor};
/// use comm_promise::{Packer, Unpacker, Value};
///
/// struct Batch {
///     step: u64,
///     tokens: Tensor,
/// }
///
/// impl Value for Batch {
///     fn pack(&self, to: &mut Packer<'_>) -> Result<()> {
///         to.wire(&self.step)?;
///         to.tensor(&self.tokens)
///     }
///
///     fn unpack(from: &mut Unpacker<'_>) -> Result<Batch> {
///         Ok(Batch { step: from.wire()?, tokens: from.tensor()? })
///     }
///
///     fn form() -> String {
///         "batch".into()
///     }
/// }
/// ```
pub trait Value: Send + Sized + 'static {
    /// Takes it apart.
    ///
    /// # Errors
    /// What the packer says.
    fn pack(&self, to: &mut Packer<'_>) -> Result<()>;

    /// Puts it together again, from the same parts in the same order.
    ///
    /// # Errors
    /// What the unpacker says.
    fn unpack(from: &mut Unpacker<'_>) -> Result<Self>;

    /// What a ticket says about the type, to be compared where it is attached.
    fn form() -> String;
}

impl Value for () {
    fn pack(&self, _to: &mut Packer<'_>) -> Result<()> {
        Ok(())
    }

    fn unpack(_from: &mut Unpacker<'_>) -> Result<()> {
        Ok(())
    }

    fn form() -> String {
        "()".into()
    }
}

impl Value for Tensor {
    fn pack(&self, to: &mut Packer<'_>) -> Result<()> {
        to.tensor(self)
    }

    fn unpack(from: &mut Unpacker<'_>) -> Result<Tensor> {
        from.tensor()
    }

    fn form() -> String {
        "tensor".into()
    }
}

impl<V: Value> Value for Vec<V> {
    fn pack(&self, to: &mut Packer<'_>) -> Result<()> {
        to.wire(&(self.len() as u64))?;
        self.iter().try_for_each(|value| {
            let before = to.body.len();
            value.pack(to)?;
            let few = to.empty.count(to.body.len() == before);
            few.map_err(|why| Error::invalid("Promise::set", why))
        })
    }

    fn unpack(from: &mut Unpacker<'_>) -> Result<Vec<V>> {
        let count: u64 = from.wire()?;
        // No room beforehand: a hostile number is found out when the parts come to their end, or are too many that have none.
        let element = |_| {
            let before = from.rest.len();
            let value = V::unpack(from)?;
            from.empty.count(from.rest.len() == before).map_err(|why| bad(&why))?;
            Ok(value)
        };
        (0..count).map(element).collect()
    }

    fn form() -> String {
        format!("[{}]", V::form())
    }
}

impl<A: Value, B: Value> Value for (A, B) {
    fn pack(&self, to: &mut Packer<'_>) -> Result<()> {
        self.0.pack(to)?;
        self.1.pack(to)
    }

    fn unpack(from: &mut Unpacker<'_>) -> Result<(A, B)> {
        Ok((A::unpack(from)?, B::unpack(from)?))
    }

    fn form() -> String {
        format!("({}, {})", A::form(), B::form())
    }
}

/// A value that serde writes.
///
/// ```
/// use comm_core::{Deadline, Kind};
/// use comm_promise::{Promise, Wire};
///
/// let promise = Promise::<Wire<String>>::new(Kind::Host)?;
/// let future = promise.future()?;
/// promise.set(Wire("done".to_string()))?;
/// assert_eq!(*future.get(Deadline::default())?, "done");
/// # Ok::<(), comm_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wire<T>(pub T);

impl<T> Deref for Wire<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Wire<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Serialize + DeserializeOwned + Send + 'static> Value for Wire<T> {
    fn pack(&self, to: &mut Packer<'_>) -> Result<()> {
        to.wire(&self.0)
    }

    fn unpack(from: &mut Unpacker<'_>) -> Result<Wire<T>> {
        from.wire().map(Wire)
    }

    fn form() -> String {
        // Two programs may have one type by different paths, so it is not the name that is compared.
        "wire".into()
    }
}

/// How many elements of vectors have taken no bytes: as `()`, of which a number says how many are to be made.
#[derive(Default)]
struct Empty(usize);

impl Empty {
    const MOST: usize = 1 << 20;

    /// One more element, which is one of these or not.
    fn count(&mut self, is_empty: bool) -> Result<(), String> {
        self.0 += usize::from(is_empty);
        if self.0 <= Empty::MOST {
            return Ok(());
        }
        Err(format!("more than {} elements that take no bytes", Empty::MOST))
    }
}

/// A tensor, as it is said.
#[derive(Serialize, Deserialize)]
enum Said {
    Lies(Place),
    Empty(DType, Layout),
}

/// Takes a value apart, in the process that sets it.
pub struct Packer<'a> {
    arena: &'a Arena,
    /// Behind what the memory of a device may be brought to the host.
    through: Option<&'a Stream>,
    pub(crate) body: Vec<u8>,
    pub(crate) segments: Vec<u64>,
    pub(crate) held: Vec<Box<dyn Send>>,
    empty: Empty,
}

impl<'a> Packer<'a> {
    pub(crate) fn new(arena: &'a Arena, through: Option<&'a Stream>) -> Packer<'a> {
        let (body, segments, held) = Default::default();
        Packer { arena, through, body, segments, held, empty: Empty::default() }
    }

    /// A tensor: by its place if it lies in the arena of this process's hub, else copied there once.
    ///
    /// # Errors
    /// No memory; [`Error::DeviceMismatch`] for memory of a device, unless it is to be set behind a stream of that.
    pub fn tensor(&mut self, tensor: &Tensor) -> Result<()> {
        let place = match self.through {
            Some(stream) if !tensor.device().is_cpu() => {
                let moved = tensor.start_to_host_in(self.arena, stream)?;
                let place = moved.place();
                self.held.push(Box::new(moved));
                place
            }
            _ => {
                let (tensor, place) = tensor.placed_in(self.arena)?;
                if place.is_some() {
                    self.held.push(Box::new(tensor));
                }
                place
            }
        };
        if let Some(place) = place
            && !self.segments.contains(&place.segment)
        {
            self.segments.push(place.segment);
        }
        let said = place.map_or(Said::Empty(tensor.dtype(), *tensor.layout()), Said::Lies);
        self.wire(&said)
    }

    /// Anything that serde writes, of any size.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn wire<T: Serialize>(&mut self, value: &T) -> Result<()> {
        let bytes =
            wire::encode_value(value).map_err(|error| Error::invalid("Packer::wire", error.to_string()))?;
        self.body.extend((bytes.len() as u64).to_le_bytes());
        self.body.extend(bytes);
        Ok(())
    }
}

/// Puts a value together, in the process that reads it.
pub struct Unpacker<'a> {
    rest: &'a [u8],
    segments: &'a [Arc<Segment>],
    tenancy: &'a Arc<Tenancy>,
    empty: Empty,
}

impl<'a> Unpacker<'a> {
    pub(crate) fn new(
        rest: &'a [u8],
        segments: &'a [Arc<Segment>],
        tenancy: &'a Arc<Tenancy>,
    ) -> Unpacker<'a> {
        Unpacker { rest, segments, tenancy, empty: Empty::default() }
    }

    /// A tensor. Its memory is that of the process that set it, so safe code gets copies of it.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if there is none.
    pub fn tensor(&mut self) -> Result<Tensor> {
        match self.wire()? {
            Said::Lies(place) => {
                let segment = self.segments.iter().find(|segment| segment.id() == place.segment);
                let segment = segment.ok_or_else(|| bad("a tensor in a segment that it does not name"))?;
                place.import(segment, self.tenancy.clone())
            }
            Said::Empty(dtype, layout) if layout.numel() == 0 => {
                Ok(TensorBuf::zeros(layout.shape(), dtype)?.freeze())
            }
            Said::Empty(..) => Err(bad("a tensor that lies nowhere")),
        }
    }

    /// Something that serde has written.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if there is no such thing.
    pub fn wire<T: DeserializeOwned>(&mut self) -> Result<T> {
        let short = || bad("less than it should");
        let (len, rest) = self.rest.split_first_chunk::<8>().ok_or_else(short)?;
        let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| short())?;
        let (bytes, rest) = rest.split_at_checked(len).ok_or_else(short)?;
        self.rest = rest;
        Ok(wire::decode_value(bytes)?)
    }

    /// Everything has been taken out.
    pub(crate) fn end(self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(bad("more than it should")) }
    }
}

fn bad(what: &str) -> Error {
    Error::bad_peer(format!("a value of a promise that holds {what}"))
}

/// How a type is taken apart and put together, where the type alone is known.
pub(crate) struct Codec<T> {
    pub(crate) pack: fn(&T, &mut Packer<'_>) -> Result<()>,
    pub(crate) unpack: fn(&mut Unpacker<'_>) -> Result<T>,
    pub(crate) form: fn() -> String,
}

impl<T: Value> Codec<T> {
    pub(crate) const OF: Codec<T> = Codec { pack: T::pack, unpack: T::unpack, form: T::form };
}

impl<T> Clone for Codec<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Codec<T> {}
