//! The real library, on a machine without a GPU, and the header as a C compiler reads it. Run by `cargo xtask test --lane peers`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test says what went wrong by panicking, and what it has seen on stdout"
)]

use std::process::Command;
use std::ptr::null_mut;

use comm_nccl_sys::{Capability, Nccl, Status, sys::*};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// What the lane has prepared.
fn prepared(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: cargo xtask test --lane peers"))
}

/// What every real library does here.
fn works_without_a_gpu(version: &str) -> Outcome {
    let nccl = Nccl::get()?;
    println!("NCCL {} of {}", nccl.version(), nccl.path());
    assert_eq!(nccl.version().to_string(), version);
    let said = |code| nccl.get_error_string(ncclResult_t(code));
    assert_eq!(said(0), "no error");
    for code in 1..7 {
        assert!(!said(code).is_empty() && said(code) != said(0), "{code}: {}", said(code));
    }
    let (one, two) = (nccl.get_unique_id()?, nccl.get_unique_id()?);
    assert!(one != two && one.internal.iter().any(|&byte| byte != 0));
    let _ = nccl.group_start()?;
    // SAFETY: the group is empty.
    let _ = unsafe { nccl.group_end() }?;
    let (mut comm, mut config) = (null_mut(), ncclConfig_t::default());
    // SAFETY: the id is of this library, place and settings are alive; there is no device on which anything could begin.
    let error = unsafe { nccl.comm_init_rank_config(&raw mut comm, 1, one, 0, &raw mut config) }.unwrap_err();
    println!("init without a GPU: {error}");
    assert!(
        matches!(
            error.status(),
            Some(Status::UnhandledCudaError | Status::SystemError | Status::InternalError)
        ),
        "{error}"
    );
    // What it refuses by itself, it says why.
    // SAFETY: as above; the rank is none.
    let error = unsafe { nccl.comm_init_rank(&raw mut comm, 1, two, 5) }.unwrap_err();
    println!("rank 5 of 1: {error}");
    assert!(comm.is_null());
    Ok(())
}

#[test]
#[ignore = "needs the library of NCCL 2.32.3"]
fn newest() -> Outcome {
    works_without_a_gpu("2.32.3")?;
    let nccl = Nccl::get()?;
    for capability in Capability::all() {
        nccl.require(capability)?;
    }
    for name in Functions::NAMES {
        assert!(nccl.functions().has(name), "{name}");
    }
    assert!(!nccl.get_error_string(ncclResult_t::ncclTimeout).is_empty());
    Ok(())
}

#[test]
#[ignore = "needs the library of NCCL 2.18.3"]
fn oldest() -> Outcome {
    works_without_a_gpu("2.18.3")?;
    let nccl = Nccl::get()?;
    let there: Vec<_> = Capability::all().filter(|&capability| nccl.has(capability)).collect();
    assert_eq!(there, [Capability::Split]);
    let error = nccl.require(Capability::AllToAll).unwrap_err().to_string();
    assert!(
        error.contains("alltoall is not available: it came with NCCL 2.28.3, and this is 2.18.3"),
        "{error}"
    );
    // SAFETY: it is not there, so nothing is called.
    let error = unsafe { nccl.mem_alloc(8) }.unwrap_err().to_string();
    assert!(error.starts_with("ncclMemAlloc is not available: it came with NCCL 2.19.0"), "{error}");
    // And nothing is there that the table of capabilities does not know.
    let there = Functions::NAMES.iter().filter(|name| nccl.functions().has(name)).count();
    assert_eq!(there, 27);
    Ok(())
}

/// Sizes, places and values, as a C compiler says them.
#[test]
#[ignore = "needs the header of NCCL 2.32.3"]
fn header() -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut asked: Vec<(String, i64)> = Vec::new();
    macro_rules! places {
        ($kind:ident: $($field:ident)*) => {
            asked.push((format!("sizeof({})", stringify!($kind)), size_of::<$kind>() as i64));
            asked.push((format!("_Alignof({})", stringify!($kind)), align_of::<$kind>() as i64));
            $(asked.push((
                format!("offsetof({}, {})", stringify!($kind), stringify!($field)),
                std::mem::offset_of!($kind, $field) as i64,
            ));)*
        };
    }
    macro_rules! values {
        ($kind:ident: $($value:ident)*) => {
            $(asked.push((stringify!($value).to_owned(), $kind::$value.0 as i64));)*
        };
    }
    places!(ncclUniqueId: internal);
    places!(ncclConfig_t: size magic version blocking cgaClusterSize minCTAs maxCTAs netName splitShare trafficClass
        commName collnetEnable CTAPolicy shrinkShare nvlsCTAs nChannelsPerNetPeer nvlinkCentricSched graphUsageMode
        numRmaCtx maxP2pPeers graphStreamOrdering launchOrderImplicit numRmaSig rmaEagerInit hostCftMode nvlsHostMode);
    places!(ncclCollConfig_t: size magic version ext minCTAs maxCTAs nvlsCTAs cgaClusterSize algSelection
        forceAlgSelection CTAPolicy userProfilerTag launchCompletionEvent);
    places!(ncclConfigExt_t: next key val);
    places!(ncclSimInfo_t: size magic version estimatedTime);
    places!(ncclEncryptionConfig_t: size magic version mode psk);
    places!(ncclWaitSignalDesc_t: opCnt peer sigIdx ctx);
    values!(ncclResult_t: ncclSuccess ncclUnhandledCudaError ncclSystemError ncclInternalError ncclInvalidArgument
        ncclInvalidUsage ncclRemoteError ncclInProgress ncclTimeout ncclNumResults);
    values!(ncclDataType_t: ncclInt8 ncclUint8 ncclInt32 ncclUint32 ncclInt64 ncclUint64 ncclFloat16 ncclFloat32
        ncclFloat64 ncclBfloat16 ncclFloat8e4m3 ncclFloat8e5m2 ncclNumTypes);
    values!(ncclRedOp_t: ncclSum ncclProd ncclMax ncclMin ncclAvg ncclNumOps ncclMaxRedOp);
    values!(ncclScalarResidence_t: ncclScalarDevice ncclScalarHostImmediate);
    values!(ncclCommMemStat_t: ncclStatGpuMemSuspend ncclStatGpuMemSuspended ncclStatGpuMemPersist ncclStatGpuMemTotal);
    let config = ncclConfig_t::default();
    for (field, ours) in
        [("size", config.size as i64), ("magic", config.magic.into()), ("version", config.version.into())]
    {
        asked.push((format!("((ncclConfig_t)NCCL_CONFIG_INITIALIZER).{field}"), ours));
    }
    for (field, ours) in [("blocking", config.blocking), ("nvlsHostMode", config.nvlsHostMode)] {
        asked.push((format!("((ncclConfig_t)NCCL_CONFIG_INITIALIZER).{field}"), ours.into()));
    }
    let config = ncclCollConfig_t::default();
    asked.push(("((ncclCollConfig_t)NCCL_COLLCONFIG_INITIALIZER).size".into(), config.size as i64));
    asked.push((
        "((ncclCollConfig_t)NCCL_COLLCONFIG_INITIALIZER).forceAlgSelection".into(),
        config.forceAlgSelection.into(),
    ));
    asked.push((
        "((ncclSimInfo_t)NCCL_SIM_INFO_INITIALIZER).magic".into(),
        ncclSimInfo_t::default().magic.into(),
    ));

    let prints: String =
        asked.iter().map(|(what, _)| format!("printf(\"%lld\\n\", (long long)({what}));\n")).collect();
    let stub = "#define CUDART_VERSION 12000\ntypedef struct CUstream_st *cudaStream_t;\ntypedef struct CUevent_st *cudaEvent_t;\n";
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("cuda_runtime.h"), stub)?;
    std::fs::write(file("cuda_fp16.h"), "")?;
    std::fs::write(file("cuda_bf16.h"), "")?;
    std::fs::copy(prepared("COMM_PEERS_NCCL_HEADER"), file("nccl.h"))?;
    std::fs::write(
        file("ask.c"),
        format!(
            "#include <stddef.h>\n#include <stdio.h>\n#include \"nccl.h\"\nint main(void) {{\n{prints}return 0;\n}}\n"
        ),
    )?;
    let built = Command::new("cc")
        .args(["-w", "-std=c11", "-I"])
        .arg(folder.path())
        .arg(file("ask.c"))
        .arg("-o")
        .arg(file("ask"))
        .output()?;
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let said = String::from_utf8(Command::new(file("ask")).output()?.stdout)?;
    let theirs: Vec<i64> = said.lines().map(str::parse).collect::<Result<_, _>>()?;
    assert_eq!(theirs.len(), asked.len());
    for ((what, ours), theirs) in asked.iter().zip(theirs) {
        assert_eq!(*ours, theirs, "{what}");
    }
    println!("{} sizes, places and values are those of the header", asked.len());
    Ok(())
}
