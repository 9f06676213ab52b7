//! `cargo xtask bindings`: makes the bindings to NCCL from its header, or says whether the committed ones are what that gives.
//!
//! Header and libclang come out of pinned packages, and bindgen is a program that is installed beside what is built: nothing
//! of all this is in the build of any crate.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cargo::{cargo, ended, root, run_to_stderr, target_dir};
use crate::cli::BindingsArgs;
use crate::download::{Artifact, NCCL_HEADER, fetch};
use crate::fail::Fail;
use crate::out::note;

/// Where the bindings are, from the workspace's root.
const FILE: &str = "crates/comm-nccl-sys/src/sys/bindings.rs";

const BINDGEN: &str = "0.73.2";

const LIBCLANG: Artifact = Artifact {
    package: "libclang",
    version: "18.1.1",
    member: "libclang-18.1.1.data/platlib/clang/native/libclang.so",
    sha256: "a8612b1c9a7125701277f63e5616f1d1eb9c91410c4bf195878067868c927f94",
};

/// The headers that nccl.h includes, as far as it needs them. With these, and none of a system, the result is the same
/// everywhere.
const STUBS: &[(&str, &str)] = &[
    (
        "cuda_runtime.h",
        "#define CUDART_VERSION 12000\n#define NULL ((void *)0)\ntypedef unsigned long size_t;\n\
         typedef struct CUstream_st *cudaStream_t;\ntypedef struct CUevent_st *cudaEvent_t;\n",
    ),
    ("cuda_fp16.h", ""),
    ("cuda_bf16.h", ""),
    ("limits.h", "#define INT_MAX 2147483647\n#define INT_MIN (-2147483647 - 1)\n"),
    (
        "stdint.h",
        "typedef signed char int8_t;\ntypedef short int16_t;\ntypedef int int32_t;\ntypedef long int64_t;\n\
         typedef unsigned char uint8_t;\ntypedef unsigned short uint16_t;\ntypedef unsigned int uint32_t;\n\
         typedef unsigned long uint64_t;\n",
    ),
];

/// Enums are integers with names, since a library may give numbers that the header does not know yet.
const FLAGS: &[&str] = &[
    "--allowlist-function=nccl.*",
    "--allowlist-type=nccl.*",
    "--allowlist-var=NCCL_.*",
    "--default-enum-style=newtype",
    "--disable-nested-struct-naming",
    "--disable-header-comment",
    "--merge-extern-blocks",
    "--no-doc-comments",
    "--no-prepend-enum-name",
    "--translate-enum-integer-types",
    "--use-core",
    "--with-derive-eq",
    "--with-derive-hash",
    "--with-derive-partialeq",
    "--rust-edition=2024",
    "--rust-target=1.85",
];

/// Makes the bindings and writes them, or compares them with what is there.
///
/// # Errors
/// [`Fail::Check`] if `--check` finds other ones, [`Fail::Usage`] if what is needed cannot be had.
pub fn run(args: &BindingsArgs) -> Result<(), Fail> {
    let file = root().join(FILE);
    let made = make()?;
    let there = std::fs::read_to_string(&file).unwrap_or_default();
    if made == there {
        note(&format!("{FILE} is current"));
        return Ok(());
    }
    if args.check {
        let line = made.lines().zip(there.lines()).position(|(a, b)| a != b).map_or(0, |n| n + 1);
        return Err(Fail::check(format!(
            "{FILE} is not what nccl.h {} gives (first difference in line {line}); make it anew: cargo xtask bindings",
            NCCL_HEADER.version
        )));
    }
    std::fs::write(&file, made).map_err(|e| Fail::usage(format!("{}: {e}", file.display())))?;
    note(&format!("{FILE} is written"));
    Ok(())
}

/// The bindings as they should be.
fn make() -> Result<String, Fail> {
    let header = fetch(&NCCL_HEADER)?;
    let libclang = fetch(&LIBCLANG)?;
    let bindgen = bindgen()?;
    let failed = |what: &str, e: &dyn std::fmt::Display| Fail::usage(format!("{what}: {e}"));
    let stubs = tempfile::tempdir().map_err(|e| failed("a temporary folder", &e))?;
    for (name, text) in STUBS {
        std::fs::write(stubs.path().join(name), text).map_err(|e| failed(name, &e))?;
    }
    let mut command = Command::new(bindgen);
    command.env("LIBCLANG_PATH", libclang.parent().unwrap_or(Path::new("/"))).stdin(Stdio::null());
    command.arg(header).args(FLAGS).arg("--rustfmt-configuration-file").arg(root().join("rustfmt.toml"));
    command.args(["--", "-nostdinc", "-target", "x86_64-unknown-linux-gnu", "-I"]).arg(stubs.path());
    let output = command.output().map_err(|e| failed("bindgen", &e))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(failed("bindgen", &format!("{}: {}", ended(output.status), said.trim())));
    }
    finish(&String::from_utf8_lossy(&output.stdout))
}

/// What it is made from, at its head; and functions that are looked up in a library, in the place of those that are linked.
fn finish(bindings: &str) -> Result<String, Fail> {
    const LINKED: &str = "unsafe extern \"C\" {";
    if bindings.matches(LINKED).count() != 1 {
        return Err(Fail::usage(format!("bindgen {BINDGEN} did not write one block of functions")));
    }
    let mut text = String::new();
    let Artifact { package, version, sha256, .. } = NCCL_HEADER;
    let _ = write!(
        text,
        "// Made by `cargo xtask bindings`; not to be edited.\n\
         // From nccl.h of {package} {version}, sha256 {sha256},\n\
         // by bindgen {BINDGEN} and libclang {}.\n\n",
        LIBCLANG.version
    );
    text.push_str(&bindings.replace(LINKED, "functions! {"));
    Ok(text)
}

/// The program, installed first if it is not there in this version.
fn bindgen() -> Result<PathBuf, Fail> {
    let tools = target_dir().join("tools");
    let program = tools.join("bin/bindgen");
    let version = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
    if version.is_ok_and(|said| said.stdout.trim_ascii() == format!("bindgen {BINDGEN}").as_bytes()) {
        return Ok(program);
    }
    note(&format!("installing bindgen {BINDGEN} under {}", tools.display()));
    let mut install =
        cargo(["install", "--quiet", "--locked", "--force", "bindgen-cli", "--version", BINDGEN]);
    install.arg("--root").arg(&tools);
    match run_to_stderr(&mut install)? {
        status if status.success() => Ok(program),
        status => Err(Fail::usage(format!("bindgen {BINDGEN} cannot be installed: {}", ended(status)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Try = Result<(), Box<dyn std::error::Error>>;

    /// What can be said without a download: they are said to be made from what is pinned here.
    #[test]
    fn the_committed_ones_name_what_is_pinned() -> Try {
        let there = std::fs::read_to_string(root().join(FILE))?;
        let head: Vec<&str> = there.lines().take(3).collect();
        let made = finish("unsafe extern \"C\" {\n}\n").map_err(|e| format!("{e:?}"))?;
        assert_eq!(head, made.lines().take(3).collect::<Vec<_>>());
        assert!(made.ends_with("\n\nfunctions! {\n}\n"), "{made}");
        Ok(())
    }

    #[test]
    fn functions_stand_in_one_block() {
        assert_eq!(finish("pub type a = u8;\n").map_err(|fail| fail.status()), Err(2));
        assert!(finish("unsafe extern \"C\" {\n}\nunsafe extern \"C\" {\n}\n").is_err());
    }
}
