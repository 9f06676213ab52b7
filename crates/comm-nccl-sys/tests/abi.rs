//! The bindings against numbers that were read off the header, and off what a C compiler makes of it.

use std::mem::{align_of, offset_of};

use comm_nccl_sys::sys::*;

#[test]
fn the_version_of_the_header() {
    assert_eq!((NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH, NCCL_VERSION_CODE), (2, 32, 3, 23_203));
}

#[test]
fn sizes_and_places() {
    assert_eq!((size_of::<ncclUniqueId>(), align_of::<ncclUniqueId>()), (128, 1));
    assert_eq!(NCCL_UNIQUE_ID_BYTES, 128);
    assert_eq!((size_of::<ncclConfig_t>(), align_of::<ncclConfig_t>()), (120, 8));
    // What 2.18 had of it, and where it goes on.
    assert_eq!((offset_of!(ncclConfig_t, size), offset_of!(ncclConfig_t, magic)), (0, 8));
    assert_eq!((offset_of!(ncclConfig_t, version), offset_of!(ncclConfig_t, blocking)), (12, 16));
    assert_eq!((offset_of!(ncclConfig_t, netName), offset_of!(ncclConfig_t, splitShare)), (32, 40));
    assert_eq!((offset_of!(ncclConfig_t, trafficClass), offset_of!(ncclConfig_t, commName)), (44, 48));
    assert_eq!(offset_of!(ncclConfig_t, nvlsHostMode), 112);
    assert_eq!(
        (size_of::<ncclCollConfig_t>(), offset_of!(ncclCollConfig_t, launchCompletionEvent)),
        (72, 64)
    );
    assert_eq!((size_of::<ncclSimInfo_t>(), offset_of!(ncclSimInfo_t, estimatedTime)), (24, 16));
    assert_eq!((size_of::<ncclEncryptionConfig_t>(), offset_of!(ncclEncryptionConfig_t, psk)), (32, 24));
    assert_eq!((size_of::<ncclConfigExt_t>(), offset_of!(ncclConfigExt_t, val)), (24, 16));
    assert_eq!((size_of::<ncclWaitSignalDesc_t>(), offset_of!(ncclWaitSignalDesc_t, ctx)), (16, 12));
    assert_eq!([size_of::<ncclResult_t>(), size_of::<ncclDataType_t>(), size_of::<ncclRedOp_t>()], [4; 3]);
    assert_eq!([size_of::<ncclComm_t>(), size_of::<ncclWindow_t>(), size_of::<cudaStream_t>()], [8; 3]);
}

#[test]
fn values_of_enums() {
    let codes = [
        ncclResult_t::ncclSuccess,
        ncclResult_t::ncclUnhandledCudaError,
        ncclResult_t::ncclSystemError,
        ncclResult_t::ncclInternalError,
        ncclResult_t::ncclInvalidArgument,
        ncclResult_t::ncclInvalidUsage,
        ncclResult_t::ncclRemoteError,
        ncclResult_t::ncclInProgress,
        ncclResult_t::ncclTimeout,
        ncclResult_t::ncclNumResults,
    ];
    assert!((0..).zip(codes).all(|(n, code)| code.0 == n), "{codes:?}");
    let types = [
        ncclDataType_t::ncclInt8,
        ncclDataType_t::ncclUint8,
        ncclDataType_t::ncclInt32,
        ncclDataType_t::ncclUint32,
        ncclDataType_t::ncclInt64,
        ncclDataType_t::ncclUint64,
        ncclDataType_t::ncclFloat16,
        ncclDataType_t::ncclFloat32,
        ncclDataType_t::ncclFloat64,
        ncclDataType_t::ncclBfloat16,
        ncclDataType_t::ncclFloat8e4m3,
        ncclDataType_t::ncclFloat8e5m2,
        ncclDataType_t::ncclNumTypes,
    ];
    assert!((0..).zip(types).all(|(n, dtype)| dtype.0 == n), "{types:?}");
    let ops = [
        ncclRedOp_t::ncclSum,
        ncclRedOp_t::ncclProd,
        ncclRedOp_t::ncclMax,
        ncclRedOp_t::ncclMin,
        ncclRedOp_t::ncclAvg,
        ncclRedOp_t::ncclNumOps,
    ];
    assert!((0..).zip(ops).all(|(n, op)| op.0 == n), "{ops:?}");
    assert_eq!(ncclRedOp_t::ncclMaxRedOp.0, 0x7fff_ffff);
    assert_eq!(ncclScalarResidence_t::ncclScalarHostImmediate.0, 1);
    assert_eq!((NCCL_WIN_COLL_SYMMETRIC, NCCL_SHRINK_ABORT, NCCL_SPLIT_NOCOLOR), (1, 1, -1));
}

#[test]
fn settings_carry_size_magic_and_version() {
    let config = ncclConfig_t::default();
    assert_eq!((config.size, config.magic, config.version), (120, 0xcafe_beef, 23_203));
    assert_eq!((config.blocking, config.splitShare, config.nvlsHostMode), (i32::MIN, i32::MIN, i32::MIN));
    assert!(config.netName.is_null() && config.commName.is_null());
    let config = ncclCollConfig_t::default();
    assert_eq!((config.size, config.magic, config.version), (72, 0xcafe_beef, 23_203));
    assert_eq!((config.minCTAs, config.forceAlgSelection, config.userProfilerTag), (i32::MIN, 1, 0));
    let info = ncclSimInfo_t::default();
    assert_eq!((info.size, info.magic, info.version), (24, 0x7468_5283, 23_203));
    let config = ncclEncryptionConfig_t::default();
    assert_eq!((config.size, config.magic, config.mode), (32, 0xcafe_beef, 0));
}
