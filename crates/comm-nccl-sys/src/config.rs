//! Structures that carry their own size: as nccl.h's initialisers make them, which bindings cannot hold.

use std::ptr::{null, null_mut};

use crate::sys::{
    NCCL_API_MAGIC, NCCL_CONFIG_UNDEF_INT, NCCL_VERSION_CODE, ncclCollConfig_t, ncclConfig_t,
    ncclEncryptionConfig_t, ncclEncryptionMode_t, ncclSimInfo_t,
};

/// Nothing is chosen: NCCL's defaults hold. An older library reads as much of it as it knows.
impl Default for ncclConfig_t {
    fn default() -> Self {
        const UNDEF: i32 = NCCL_CONFIG_UNDEF_INT;
        ncclConfig_t {
            size: size_of::<ncclConfig_t>(),
            magic: NCCL_API_MAGIC,
            version: NCCL_VERSION_CODE,
            blocking: UNDEF,
            cgaClusterSize: UNDEF,
            minCTAs: UNDEF,
            maxCTAs: UNDEF,
            netName: null(),
            splitShare: UNDEF,
            trafficClass: UNDEF,
            commName: null(),
            collnetEnable: UNDEF,
            CTAPolicy: UNDEF,
            shrinkShare: UNDEF,
            nvlsCTAs: UNDEF,
            nChannelsPerNetPeer: UNDEF,
            nvlinkCentricSched: UNDEF,
            graphUsageMode: UNDEF,
            numRmaCtx: UNDEF,
            maxP2pPeers: UNDEF,
            graphStreamOrdering: UNDEF,
            launchOrderImplicit: UNDEF,
            numRmaSig: UNDEF,
            rmaEagerInit: UNDEF,
            hostCftMode: UNDEF,
            nvlsHostMode: UNDEF,
        }
    }
}

/// Nothing is chosen but that an algorithm which is asked for is used or an error.
impl Default for ncclCollConfig_t {
    fn default() -> Self {
        const UNDEF: i32 = NCCL_CONFIG_UNDEF_INT;
        ncclCollConfig_t {
            size: size_of::<ncclCollConfig_t>(),
            magic: NCCL_API_MAGIC,
            version: NCCL_VERSION_CODE,
            ext: null_mut(),
            minCTAs: UNDEF,
            maxCTAs: UNDEF,
            nvlsCTAs: UNDEF,
            cgaClusterSize: UNDEF,
            algSelection: null(),
            forceAlgSelection: 1,
            CTAPolicy: UNDEF,
            userProfilerTag: 0,
            launchCompletionEvent: null_mut(),
        }
    }
}

/// Nothing is known yet.
impl Default for ncclSimInfo_t {
    fn default() -> Self {
        ncclSimInfo_t {
            size: size_of::<ncclSimInfo_t>(),
            magic: 0x7468_5283,
            version: NCCL_VERSION_CODE,
            estimatedTime: -1.0,
        }
    }
}

/// No encryption.
impl Default for ncclEncryptionConfig_t {
    fn default() -> Self {
        ncclEncryptionConfig_t {
            size: size_of::<ncclEncryptionConfig_t>(),
            magic: NCCL_API_MAGIC,
            version: NCCL_VERSION_CODE,
            mode: ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_NONE.0 as i32,
            psk: null(),
        }
    }
}
