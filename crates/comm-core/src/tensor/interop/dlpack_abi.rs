//! The C structures of DLPack 1.x, field by field as in its header `dlpack.h`, and its numbers as far as they are
//! used here.

use std::ffi::c_void;

/// Version of the structures. Another major version lays them out otherwise; another minor one has more numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct DLPackVersion {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
}

/// Where memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct DLDevice {
    /// Kind of device, such as [`CPU`].
    pub device_type: i32,
    /// Which one of them; 0 for the CPU.
    pub device_id: i32,
}

/// Type of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct DLDataType {
    /// Kind of number, such as [`FLOAT`].
    pub code: u8,
    /// Bits of one number; of both parts if it is complex.
    pub bits: u8,
    /// How many numbers an element has; 1 unless it is a vector.
    pub lanes: u16,
}

/// A tensor, without an owner.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct DLTensor {
    /// The memory; null if there are no elements.
    pub data: *mut c_void,
    /// Where the memory is.
    pub device: DLDevice,
    /// Number of dimensions.
    pub ndim: i32,
    /// Type of the elements.
    pub dtype: DLDataType,
    /// Size of each dimension.
    pub shape: *mut i64,
    /// Distance between neighbours in each dimension, in elements. Null in old versions: row-major.
    pub strides: *mut i64,
    /// Bytes from `data` to the element at index 0.
    pub byte_offset: u64,
}

/// A tensor and how to give it back, as before DLPack 1.0.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// The producer's.
    pub manager_ctx: *mut c_void,
    /// Gives the tensor back, this structure with it.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// A tensor and how to give it back.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensorVersioned {
    /// Version of this structure. What comes before `dl_tensor` is the same in all of them.
    pub version: DLPackVersion,
    /// The producer's.
    pub manager_ctx: *mut c_void,
    /// Gives the tensor back, this structure with it.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// Bits such as [`READ_ONLY`].
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

/// The version that is spoken here.
pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 1 };

/// `DLPACK_FLAG_BITMASK_READ_ONLY`: the consumer must not write.
pub const READ_ONLY: u64 = 1;
/// `DLPACK_FLAG_BITMASK_IS_COPIED`: nobody but the consumer uses the memory until it is given back.
pub const IS_COPIED: u64 = 1 << 1;
/// `DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED`: about elements of less than a byte.
pub const SUBBYTE_PADDED: u64 = 1 << 2;

/// `kDLCPU`.
pub const CPU: i32 = 1;

/// `kDLInt`.
pub const INT: u8 = 0;
/// `kDLUInt`.
pub const UINT: u8 = 1;
/// `kDLFloat`.
pub const FLOAT: u8 = 2;
/// `kDLBfloat`.
pub const BFLOAT: u8 = 4;
/// `kDLComplex`.
pub const COMPLEX: u8 = 5;
/// `kDLBool`.
pub const BOOL: u8 = 6;
/// `kDLFloat8_e4m3fn`.
pub const FLOAT8_E4M3FN: u8 = 10;
/// `kDLFloat8_e5m2`.
pub const FLOAT8_E5M2: u8 = 12;

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<DLTensor>() == 48 && size_of::<DLManagedTensor>() == 64);
    assert!(offset_of!(DLTensor, dtype) == 20 && offset_of!(DLTensor, shape) == 24);
    assert!(size_of::<DLManagedTensorVersioned>() == 80);
    assert!(offset_of!(DLManagedTensorVersioned, flags) == 24);
    assert!(offset_of!(DLManagedTensorVersioned, dl_tensor) == 32);
};
